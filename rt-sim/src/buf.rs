//! Copying out of and into owned buffers. The only unsafe code here: buffers are written through
//! pointers, because a kernel would.
#![allow(unsafe_code)]

use rt_abstract::{IoBuf, IoBufMut};

/// Puts as much of `bytes` behind what `buf` holds as fits; returns how much.
pub(crate) fn append<B: IoBufMut>(buf: &mut B, bytes: &[u8]) -> usize {
    let len = buf.len();
    let count = bytes.len().min(buf.capacity() - len);
    // SAFETY: `count` bytes from `len` on are within the buffer's capacity, which is writable, and
    // `bytes` cannot overlap what `buf` owns exclusively; they are initialized by the copy.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr().add(len), count);
        buf.set_len(len + count);
    }
    count
}

/// All bytes of the pieces, in order.
pub(crate) fn gather<B: IoBuf>(bufs: &[B]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bufs.iter().map(IoBuf::len).sum());
    bufs.iter().for_each(|buf| bytes.extend_from_slice(buf.as_slice()));
    bytes
}
