//! The backends that this binary was built with: names, dispatch, and which one to use.

use rt_abstract::{Probe, Runtime};

#[cfg(not(any(feature = "rt-tokio", feature = "rt-monoio", feature = "rt-compio")))]
compile_error!("switch on at least one of the features rt-tokio, rt-monoio, rt-compio");

/// A backend by name, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// tokio: readiness I/O.
    Tokio,
    /// monoio: io_uring.
    Monoio,
    /// compio: io_uring.
    Compio,
}

/// Something to do with a backend's type.
pub trait Visit {
    /// What comes out.
    type Output;
    /// Does it.
    fn visit<R: Runtime>(self) -> Self::Output;
}

impl Backend {
    /// All, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Tokio, Self::Monoio, Self::Compio];

    /// The name in flags and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Monoio => "monoio",
            Self::Compio => "compio",
        }
    }

    /// Runs `visitor` with the backend's type; `None` when it was not compiled in.
    #[cfg_attr(
        not(all(feature = "rt-tokio", feature = "rt-monoio", feature = "rt-compio")),
        allow(unused_variables)
    )]
    pub fn with<V: Visit>(self, visitor: V) -> Option<V::Output> {
        match self {
            #[cfg(feature = "rt-tokio")]
            Self::Tokio => Some(visitor.visit::<rt_tokio::Tokio>()),
            #[cfg(feature = "rt-monoio")]
            Self::Monoio => Some(visitor.visit::<rt_monoio::Monoio>()),
            #[cfg(feature = "rt-compio")]
            Self::Compio => Some(visitor.visit::<rt_compio::Compio>()),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    /// The one for tools, which need no speed and should run everywhere: tokio, if it is there.
    pub fn for_tools() -> Option<Self> {
        let compiled_in = |backend: &Self| backend.probe().is_some();
        Self::ALL.into_iter().find(compiled_in)
    }

    /// What it can do here; `None` when it was not compiled in.
    pub fn probe(self) -> Option<Probe> {
        struct Ask;
        impl Visit for Ask {
            type Output = Probe;
            fn visit<R: Runtime>(self) -> Probe {
                R::probe()
            }
        }
        self.with(Ask)
    }
}

/// All backends with what they can do here.
pub fn probe_all() -> Vec<(Backend, Option<Probe>)> {
    Backend::ALL.into_iter().map(|backend| (backend, backend.probe())).collect()
}

/// The one to use when none was asked for: a completion backend that really gets io_uring
/// (monoio before compio), else tokio, else whatever was compiled in.
pub fn best(probes: &[(Backend, Option<Probe>)]) -> Option<Backend> {
    let find = |backend| {
        probes.iter().find(|(name, _)| *name == backend).and_then(|(_, probe)| probe.as_ref())
    };
    let by_rank = [Backend::Monoio, Backend::Compio];
    by_rank
        .into_iter()
        .find(|&backend| find(backend).is_some_and(uses_io_uring))
        .or_else(|| find(Backend::Tokio).map(|_| Backend::Tokio))
        .or_else(|| by_rank.into_iter().find(|&backend| find(backend).is_some()))
}

/// Whether a backend gets io_uring here.
pub fn uses_io_uring(probe: &Probe) -> bool {
    probe.completion && probe.driver == "io_uring"
}

/// `a, b` of the backends compiled in.
pub fn compiled_in() -> String {
    let names = probe_all().into_iter().filter(|(_, probe)| probe.is_some());
    names.map(|(backend, _)| backend.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(driver: &'static str, completion: bool) -> Option<Probe> {
        Some(Probe { driver, completion, fallback_reason: None, schedulers: vec![] })
    }

    #[test]
    fn a_working_completion_backend_comes_first() {
        let tokio = (Backend::Tokio, probe("epoll", false));
        let all = |monoio, compio| {
            best(&[tokio.clone(), (Backend::Monoio, monoio), (Backend::Compio, compio)])
        };
        let (ring, fallback) = (probe("io_uring", true), probe("epoll", true));
        assert_eq!(all(ring.clone(), ring.clone()), Some(Backend::Monoio));
        assert_eq!(all(fallback.clone(), ring.clone()), Some(Backend::Compio));
        assert_eq!(all(fallback.clone(), fallback.clone()), Some(Backend::Tokio));
        assert_eq!(all(None, None), Some(Backend::Tokio));
        assert_eq!(best(&[(Backend::Compio, fallback)]), Some(Backend::Compio));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn this_build_has_a_backend() {
        assert!(best(&probe_all()).is_some());
        assert!(!compiled_in().is_empty());
    }
}
