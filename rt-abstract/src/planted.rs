//! Mistakes that are made on purpose, so that the simulation can be seen to find them. Without the
//! feature `planted-bugs`, which no program turns on, there are none and nothing of them is compiled.

/// A mistake, one for each kind of promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A publish is acknowledged before the journal has synced it.
    AckBeforeSync,
    /// A connection is not told that another one took its session over.
    LostTakeover,
    /// After a restart it is not known which QoS 2 messages were taken.
    ForgottenQos2,
    /// A retained message does not replace the one before it.
    StaleRetained,
    /// After a restart identifiers begin where the journal ends, not behind what it may have lost.
    ReusedIdentifier,
    /// Queues take messages beyond their bound.
    UnboundedQueue,
    /// A read that takes long is dropped, and what it read with it.
    DroppedRead,
    /// A will is published when the connection ends, and once more with the session.
    DoubledWill,
    /// Effects are written first, and what was applied in a write of its own.
    SplitApply,
    /// Recovery takes what lies in the file for what was synced.
    TrustedLength,
}

impl Bug {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 10] = [
        ("ack-before-sync", Self::AckBeforeSync),
        ("lost-takeover", Self::LostTakeover),
        ("forgotten-qos2", Self::ForgottenQos2),
        ("stale-retained", Self::StaleRetained),
        ("reused-identifier", Self::ReusedIdentifier),
        ("unbounded-queue", Self::UnboundedQueue),
        ("dropped-read", Self::DroppedRead),
        ("doubled-will", Self::DoubledWill),
        ("split-apply", Self::SplitApply),
        ("trusted-length", Self::TrustedLength),
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether a mistake is to be made by the calling thread.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a mistake is to be made: never in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}

/// Lets the calling thread make a mistake from now on, by its name.
///
/// # Errors
/// There is none of that name, or none at all in this build.
pub fn plant(name: &str) -> Result<(), String> {
    let Some((_, bug)) = Bug::ALL.into_iter().find(|(known, _)| *known == name) else {
        let names = Bug::ALL.map(|(name, _)| name).join(", ");
        return Err(format!("no mistake is named '{name}': {names}"));
    };
    set(bug)
}

#[cfg(feature = "planted-bugs")]
fn set(bug: Bug) -> Result<(), String> {
    PLANTED.set(Some(bug));
    Ok(())
}

#[cfg(not(feature = "planted-bugs"))]
fn set(bug: Bug) -> Result<(), String> {
    Err(format!("{bug:?} takes a build with the feature planted-bugs"))
}
