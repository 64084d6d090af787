#![no_main]

#[path = "../../mqtt/tests/judge/mod.rs"]
#[allow(dead_code, reason = "each target uses one of its functions")]
mod judge;

libfuzzer_sys::fuzz_target!(|data: &[u8]| judge::decode(data));
