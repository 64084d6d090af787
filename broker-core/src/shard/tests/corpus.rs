//! Replays what fuzzing found in whole shards, and a short run of pseudo-random inputs.

use std::path::Path;

use crate::shard::testing::run;

#[test]
fn inputs_of_the_corpus_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/shard");
    let mut count = 0;
    for file in std::fs::read_dir(&folder).expect("the corpus is there") {
        let path = file.expect("a readable folder").path();
        println!("{}", path.display()); // names the culprit when the next line panics
        run(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count > 0, "no inputs in {}", folder.display());
}

#[test]
fn pseudo_random_inputs_pass() {
    // xorshift64: the same inputs on every machine.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..3_000 {
        let length = (next() % 400) as usize;
        let data: Vec<u8> = (0..length).map(|_| (next() >> 32) as u8).collect();
        let played = std::panic::catch_unwind(|| run(&data));
        assert!(played.is_ok(), "round {round}: {data:?}");
    }
}
