//! rt-abstract's buffers in the shape in which compio's operations take them.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use compio::buf::{IoVectoredBuf, SetLen};
use rt_abstract::{IoBuf, IoBufMut};

/// The kernel takes no more pieces than this in one call.
const IOV_MAX: usize = 1024;

/// The spare capacity of a buffer, for an operation that fills it.
///
/// compio sees a buffer without initialized bytes; [`Spare::filled`] puts what has arrived behind
/// the bytes that the real one holds.
pub(crate) struct Spare<B>(B);

/// The initialized bytes from `from` on, for an operation that sends them.
pub(crate) struct Rest<B> {
    buf: B,
    from: usize,
}

/// The pieces of a vectored write that are not written yet.
pub(crate) struct Pieces<B> {
    bufs: Vec<B>,
    /// The first piece that is not fully written.
    index: usize,
    /// How many of its bytes are.
    offset: usize,
}

impl<B: IoBufMut> Spare<B> {
    /// Gives the buffer back when it has no spare capacity.
    pub(crate) fn of(buf: B) -> Result<Self, B> {
        if buf.len() < buf.capacity() { Ok(Self(buf)) } else { Err(buf) }
    }

    /// The buffer as it was.
    pub(crate) fn into_inner(self) -> B {
        self.0
    }

    /// The buffer with `count` more initialized bytes.
    ///
    /// # Safety
    /// An operation wrote `count` bytes to the start of the spare capacity.
    pub(crate) unsafe fn filled(self, count: usize) -> B {
        let mut buf = self.0;
        let len = buf.len() + count;
        // SAFETY: the bytes up to the old length were initialized, the caller promises the rest.
        unsafe { buf.set_len(len) };
        buf
    }

    /// The spare capacity.
    pub(crate) fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let (len, capacity) = (self.0.len(), self.0.capacity());
        // SAFETY: IoBufMut promises `capacity` writable bytes, so this range is part of them; it
        // is borrowed as long as the buffer is.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.as_mut_ptr().add(len).cast(), capacity - len)
        }
    }
}

impl<B: IoBuf> Rest<B> {
    /// All of `buf`.
    pub(crate) fn of(buf: B) -> Self {
        Self { buf, from: 0 }
    }

    /// Leaves the next `count` bytes out.
    pub(crate) fn advance(&mut self, count: usize) {
        self.from += count;
    }

    /// Whether no bytes are left.
    pub(crate) fn is_done(&self) -> bool {
        self.from >= self.buf.len()
    }

    /// The whole buffer back.
    pub(crate) fn into_inner(self) -> B {
        self.buf
    }
}

impl<B: IoBuf> Pieces<B> {
    /// All of `bufs`.
    pub(crate) fn of(bufs: Vec<B>) -> Self {
        let mut pieces = Self { bufs, index: 0, offset: 0 };
        pieces.advance(0);
        pieces
    }

    /// Leaves the next `count` bytes out.
    pub(crate) fn advance(&mut self, count: usize) {
        self.offset += count;
        while let Some(piece) = self.bufs.get(self.index)
            && self.offset >= piece.len()
        {
            self.offset -= piece.len();
            self.index += 1;
        }
    }

    /// Whether no bytes are left.
    pub(crate) fn is_done(&self) -> bool {
        self.index >= self.bufs.len()
    }

    /// All pieces back.
    pub(crate) fn into_inner(self) -> Vec<B> {
        self.bufs
    }
}

impl<B: IoBufMut> compio::buf::IoBuf for Spare<B> {
    fn as_init(&self) -> &[u8] {
        &[]
    }
}

impl<B: IoBufMut> compio::buf::IoBufMut for Spare<B> {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        self.as_uninit()
    }
}

impl<B> SetLen for Spare<B> {
    unsafe fn set_len(&mut self, _len: usize) {
        // The length is set once, by `filled`.
    }
}

impl<B: IoBuf> compio::buf::IoBuf for Rest<B> {
    fn as_init(&self) -> &[u8] {
        &self.buf.as_slice()[self.from..]
    }
}

impl<B: IoBuf> IoVectoredBuf for Pieces<B> {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.offset;
        self.bufs[self.index..]
            .iter()
            .map(move |piece| &piece.as_slice()[std::mem::take(&mut skip)..])
            .filter(|slice| !<[u8]>::is_empty(slice))
            .take(IOV_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(pieces: &Pieces<&'static [u8]>) -> Vec<u8> {
        pieces.iter_slice().flatten().copied().collect()
    }

    #[test]
    fn pieces_advance_over_borders_and_empty_pieces() {
        let mut pieces = Pieces::of(vec![&b""[..], b"ab", b"", b"cde", b""]);
        assert_eq!(left(&pieces), b"abcde");
        pieces.advance(1);
        assert_eq!(left(&pieces), b"bcde");
        pieces.advance(2);
        assert_eq!(left(&pieces), b"de");
        assert!(!pieces.is_done());
        pieces.advance(2);
        assert!(pieces.is_done());
        assert_eq!(pieces.into_inner().len(), 5);
        assert!(Pieces::of(vec![&b""[..]; 3]).is_done());
    }

    #[test]
    fn no_more_pieces_than_the_kernel_takes() {
        let pieces = Pieces::of(vec![&b"x"[..]; IOV_MAX + 5]);
        assert_eq!(pieces.iter_slice().count(), IOV_MAX);
    }

    #[test]
    fn spare_capacity_lies_behind_the_bytes() {
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"head");
        let mut spare = Spare::of(buf).expect("has room");
        spare.as_uninit()[..2].copy_from_slice(&[MaybeUninit::new(b'x'); 2]);
        // SAFETY: two bytes were written above.
        assert_eq!(unsafe { spare.filled(2) }, b"headxx");
        assert!(Spare::of(b"full".to_vec().into_boxed_slice().into_vec()).is_err());
    }
}
