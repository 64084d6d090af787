//! Bytes to packets and back, for 3.1, 3.1.1 and 5.0.
//!
//! Decoding borrows from the input and allocates nothing; a length is believed only after the
//! bytes behind it have been seen. Every way in which a packet can be wrong is one variant of
//! [`DecodeError`], which knows its reason code and the clause that it breaks.

mod packet;

pub use packet::*;
