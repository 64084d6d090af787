#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broker_core::testing::run(data));
