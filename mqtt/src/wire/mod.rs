//! Bytes to packets and back, for 3.1, 3.1.1 and 5.0.
//!
//! Decoding borrows from the input and allocates nothing; a length is believed only after the
//! bytes behind it have been seen. Every way in which a packet can be wrong is one variant of
//! [`DecodeError`], which knows its reason code and the clause that it breaks.

mod decode;
mod encode;
mod error;
mod filters;
mod frame;
mod packet;
mod properties;
mod property_buf;
mod property_check;
mod reader;
mod reason;
#[cfg(test)]
mod tests;

pub use decode::{connect_version, decode_from_client, decode_from_server};
pub use encode::{
    PublishHead, encode, encode_ack, encode_pingresp, encode_publish_head, publish_size_bytes,
};
pub use error::DecodeError;
pub use filters::FilterBuf;
pub use frame::{Frame, MAX_PACKET_BYTES, PacketType, Sender, peek};
pub use packet::*;
pub use properties::{Properties, Property};
pub use property_buf::PropertyBuf;
pub use reason::ReasonCode;
