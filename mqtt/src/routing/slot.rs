//! Slots: which of the owners a client belongs to.

/// How many slots there are.
pub const SLOTS: u16 = 4096;

/// The slot of a client identifier, 0 to 4095; shard `slot % shards` owns it. Stable: data directories
/// and other nodes rely on it, and so do load generators that choose where their clients go.
pub fn slot_of(client_id: &str) -> u16 {
    // FNV-1a with a final mix, since its low bits alone are weak for short similar names.
    let hash = client_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 52) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_stable_and_spread() {
        assert_eq!(["", "a", "client-7"].map(slot_of), [2135, 2091, 486]);
        let mut used = std::collections::HashSet::new();
        for client in 0..4096 {
            let slot = slot_of(&format!("client-{client}"));
            assert!(slot < SLOTS);
            used.insert(slot);
        }
        // 4096 balls into 4096 bins fill 63 % of them.
        assert!(used.len() > 2400, "only {} slots used", used.len());
    }
}
