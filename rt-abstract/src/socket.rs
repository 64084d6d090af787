//! A socket that no core drives: bound and not yet served, or on its way from one core to another.

use std::any::Any;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::net::{Address, bound_address};

/// A listening or a connected socket as plain property, which may go to another thread: a descriptor,
/// or what stands for one where there is no kernel.
#[derive(Debug)]
pub struct Socket(Inner);

/// What stands for a descriptor in a simulation. Dropping the last reference closes the socket.
pub trait Simulated: Any + Debug + Send + Sync {
    /// The address it is bound to.
    ///
    /// # Errors
    /// When it is bound to none.
    fn local_address(&self) -> io::Result<Address>;
}

#[derive(Debug)]
enum Inner {
    Descriptor(OwnedFd),
    Simulated(Arc<dyn Simulated>),
}

impl Socket {
    /// A socket without a kernel.
    pub fn simulated(socket: Arc<dyn Simulated>) -> Self {
        Self(Inner::Simulated(socket))
    }

    /// The descriptor.
    ///
    /// # Errors
    /// `ErrorKind::Unsupported` for a simulated socket.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        match self.0 {
            Inner::Descriptor(fd) => Ok(fd),
            Inner::Simulated(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// What a simulation made.
    ///
    /// # Errors
    /// `ErrorKind::Unsupported` for a descriptor, or for a socket of another simulation.
    pub fn into_simulated<T: Simulated>(self) -> io::Result<Arc<T>> {
        match self.0 {
            Inner::Simulated(socket) => {
                let any: Arc<dyn Any + Send + Sync> = socket;
                any.downcast().map_err(|_| ErrorKind::Unsupported.into())
            }
            Inner::Descriptor(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// A second name for the same socket: of several listeners on one, each peer goes to one.
    ///
    /// # Errors
    /// What the system said, such as having too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(match &self.0 {
            Inner::Descriptor(fd) => Inner::Descriptor(fd.try_clone()?),
            Inner::Simulated(socket) => Inner::Simulated(socket.clone()),
        }))
    }

    /// The address it is bound to, with the port that was chosen.
    ///
    /// # Errors
    /// What the system said.
    pub fn local_address(&self) -> io::Result<Address> {
        match &self.0 {
            Inner::Descriptor(fd) => bound_address(&fd.as_fd()),
            Inner::Simulated(socket) => socket.local_address(),
        }
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self(Inner::Descriptor(fd))
    }
}
