//! Buffers that are handed to the kernel and come back.
//!
//! This module and the backends are the only places with `unsafe`: the traits promise the kernel
//! a memory range that stays put and stays owned while the task sleeps.
#![allow(unsafe_code)]

use bytes::{Bytes, BytesMut};

/// An owned buffer that can be read by the kernel.
///
/// Buffers are always `Send`, also in the single-threaded build: a backend may pass them to a
/// blocking pool.
///
/// # Safety
/// `as_ptr` must point to `len` initialized bytes that stay valid, and at the same address, while
/// the value is owned and not changed, even when the value itself is moved.
pub unsafe trait IoBuf: Send + Unpin + 'static {
    /// The first initialized byte.
    fn as_ptr(&self) -> *const u8;

    /// How many bytes are initialized.
    fn len(&self) -> usize;

    /// Whether no byte is initialized.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The initialized bytes.
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the trait promises that the range is initialized and valid for this borrow.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The part from byte `begin` on, as a buffer of its own that gives the whole back.
    ///
    /// # Panics
    /// When `begin` is past the end.
    fn slice_from(self, begin: usize) -> Slice<Self>
    where
        Self: Sized,
    {
        assert!(begin <= self.len(), "slice begins at {begin} of {} bytes", self.len());
        Slice { inner: self, begin }
    }
}

/// An owned buffer that the kernel can fill behind its initialized bytes.
///
/// # Safety
/// `as_mut_ptr` must point to `capacity` writable bytes, of which the first `len` are
/// initialized, under the same conditions as [`IoBuf`].
pub unsafe trait IoBufMut: IoBuf {
    /// The first byte, initialized or not.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// How many bytes fit without allocating.
    fn capacity(&self) -> usize;

    /// Declares the first `len` bytes initialized.
    ///
    /// # Safety
    /// They are, and `len` is at most `capacity`.
    unsafe fn set_len(&mut self, len: usize);
}

/// The rest of a buffer from some byte on; see [`IoBuf::slice_from`].
#[derive(Debug)]
pub struct Slice<B> {
    inner: B,
    begin: usize,
}

/// One piece of a vectored write: bytes built for one receiver, or bytes shared by many.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Owned by this write alone.
    Owned(Vec<u8>),
    /// Shared by reference.
    Shared(Bytes),
}

impl<B> Slice<B> {
    /// The whole buffer back.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

// SAFETY: a Vec's heap block does not move with the Vec.
unsafe impl IoBuf for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above; spare capacity of a Vec is writable.
unsafe impl IoBufMut for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Vec::as_mut_ptr(self)
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: the caller promises initialized bytes within capacity.
        unsafe { Vec::set_len(self, len) }
    }
}

// SAFETY: a BytesMut's block does not move with the handle.
unsafe impl IoBuf for BytesMut {
    fn as_ptr(&self) -> *const u8 {
        self.as_ref().as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above; a BytesMut owns its spare capacity alone.
unsafe impl IoBufMut for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut().as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: the caller promises initialized bytes within capacity.
        unsafe { BytesMut::set_len(self, len) }
    }
}

// SAFETY: the bytes behind a Bytes are immutable and live as long as any handle.
unsafe impl IoBuf for Bytes {
    fn as_ptr(&self) -> *const u8 {
        self.as_ref().as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: a boxed slice's block does not move with the box.
unsafe impl IoBuf for Box<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        self.as_ref().as_ptr()
    }
    fn len(&self) -> usize {
        self.as_ref().len()
    }
}

// SAFETY: static bytes never move.
unsafe impl IoBuf for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: both kinds keep the promise themselves.
unsafe impl IoBuf for Piece {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        self.as_slice().len()
    }
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

// SAFETY: a sub-range of a buffer that keeps the same promises.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        self.inner.len() - self.begin
    }
    fn as_slice(&self) -> &[u8] {
        &self.inner.as_slice()[self.begin..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_shows_its_bytes() {
        fn check(buf: impl IoBuf) {
            assert_eq!(buf.as_slice(), b"abc");
            assert_eq!(buf.slice_from(1).as_slice(), b"bc");
        }
        check(b"abc".to_vec());
        check(BytesMut::from(&b"abc"[..]));
        check(Bytes::from_static(b"abc"));
        check(b"abc".to_vec().into_boxed_slice());
        check(&b"abc"[..]);
        check(Piece::Owned(b"abc".to_vec()));
        check(Piece::Shared(Bytes::from_static(b"abc")));
        check(b"xabc".to_vec().slice_from(1));
    }

    #[test]
    fn a_slice_gives_the_whole_back() {
        let slice = b"abc".to_vec().slice_from(3);
        assert!(slice.is_empty());
        assert_eq!(slice.into_inner(), b"abc");
    }

    #[test]
    #[should_panic(expected = "slice begins at 4")]
    fn a_slice_past_the_end_is_refused() {
        let _ = b"abc".to_vec().slice_from(4);
    }
}
