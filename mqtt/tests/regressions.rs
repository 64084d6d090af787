//! Replays what fuzzing found, and a short run of pseudo-random inputs: the fuzz targets' share of
//! the normal tests.

mod judge;

use std::path::Path;

/// One fuzz target.
type Target = fn(&[u8]);
const TARGETS: [(&str, Target); 2] = [("decode", judge::decode), ("roundtrip", judge::roundtrip)];

#[test]
fn inputs_of_the_corpus_pass() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
        let mut count = 0;
        for file in std::fs::read_dir(&folder).expect("the corpus is there") {
            let path = file.expect("a readable folder").path();
            let data = std::fs::read(&path).expect("a readable file");
            println!("{}", path.display()); // names the culprit when the next line panics
            target(&data);
            count += 1;
        }
        assert!(count > 0, "no inputs in {}", folder.display());
    }
}

#[test]
fn pseudo_random_inputs_pass() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..60_000 {
        let data = random.packet_like();
        for (_, target) in TARGETS {
            target(&data);
        }
    }
}

/// xorshift64: the same inputs on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A choice byte and one to three frames whose lengths mostly fit, and whose bytes are mostly
    /// small: so that many of them pass the first checks.
    fn packet_like(&mut self) -> Vec<u8> {
        let mut data = vec![self.next() as u8];
        for _ in 0..=self.next() % 3 {
            let length = (self.next() % 40) as u8;
            let flags = match self.next() % 3 {
                0 => 0,
                1 => 2,
                _ => self.next() as u8 & 0x0f,
            };
            data.push((self.next() as u8) << 4 | flags);
            data.push(if self.next().is_multiple_of(10) { self.next() as u8 } else { length });
            if self.next().is_multiple_of(4) {
                // A CONNECT's beginning, or much of the rest is never reached.
                let name: &[u8] =
                    if self.next().is_multiple_of(4) { b"\0\x06MQIsdp" } else { b"\0\x04MQTT" };
                data.extend_from_slice(name);
                data.push(3 + (self.next() % 4) as u8);
            }
            for _ in 0..length {
                let byte = match self.next() % 4 {
                    0 => self.next() as u8,
                    1 => (self.next() % 43) as u8,
                    _ => (self.next() % 4) as u8,
                };
                data.push(byte);
            }
        }
        data
    }
}
