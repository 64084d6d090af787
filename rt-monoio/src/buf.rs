//! Wrappers that lend `rt-abstract` buffers to monoio.
//!
//! monoio reads into the whole of a buffer and writes all of it; the contract reads behind what is
//! there and writes from some byte on. Every wrapper counts itself: a buffer whose operation was
//! dropped half way stays with the ring until the kernel lets go of it, and a core may not free
//! its ring before (see [`lent`]).
#![allow(unsafe_code)]

use std::cell::Cell;

use rt_abstract::{IoBuf, IoBufMut};

/// The most bytes that one read or write moves in Linux.
const MAX_MOVE_BYTES: usize = 0x7fff_f000;

/// The most pieces that one vectored write takes (the kernel's IOV_MAX).
pub(crate) const MAX_PIECES: usize = 1024;

thread_local! {
    static LENT: Cell<usize> = const { Cell::new(0) };
}

/// Buffers of this thread that the driver holds now.
pub(crate) fn lent() -> usize {
    LENT.get()
}

/// The spare capacity of a buffer, to read into.
pub(crate) struct Spare<B> {
    buf: B,
    begin: usize,
    _loan: Loan,
}

/// The bytes of a buffer from some point on, to write.
pub(crate) struct Rest<B> {
    buf: B,
    begin: usize,
    _loan: Loan,
}

/// A position in a list of pieces that are written in order.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    piece: usize,
    begin: usize,
}

/// Up to [`MAX_PIECES`] pieces from a position on, to write in one operation.
pub(crate) struct Pieces<B> {
    bufs: Vec<B>,
    iovecs: Vec<libc::iovec>,
    _loan: Loan,
}

/// The rest of one piece out of a list, to write on its own.
pub(crate) struct OnePiece<B> {
    bufs: Vec<B>,
    at: Cursor,
    _loan: Loan,
}

impl<B: IoBufMut> Spare<B> {
    /// Gives the buffer back when it has no room.
    pub(crate) fn new(buf: B) -> Result<Self, B> {
        let begin = buf.len();
        if buf.capacity() > begin { Ok(Self { buf, begin, _loan: Loan::new() }) } else { Err(buf) }
    }

    pub(crate) fn into_inner(self) -> B {
        self.buf
    }
}

impl<B: IoBuf> Rest<B> {
    /// `begin` is at most the buffer's length.
    pub(crate) fn new(buf: B, begin: usize) -> Self {
        debug_assert!(begin <= buf.len());
        Self { buf, begin, _loan: Loan::new() }
    }

    pub(crate) fn into_inner(self) -> B {
        self.buf
    }
}

impl Cursor {
    /// Moves on by `bytes` that were written, then over empty pieces.
    pub(crate) fn advance<B: IoBuf>(&mut self, bufs: &[B], mut bytes: usize) {
        while let Some(buf) = bufs.get(self.piece) {
            let left = buf.len() - self.begin;
            if bytes < left {
                self.begin += bytes;
                return;
            }
            bytes -= left;
            *self = Self { piece: self.piece + 1, begin: 0 };
        }
    }

    /// The bytes left in the piece that it stands on; `None` at the end of the list.
    pub(crate) fn current<B: IoBuf>(self, bufs: &[B]) -> Option<&[u8]> {
        bufs.get(self.piece).map(|buf| &buf.as_slice()[self.begin..])
    }

    /// The pieces from here on, the first one without what is done of it.
    pub(crate) fn rest<B: IoBuf>(self, bufs: &[B]) -> impl Iterator<Item = &[u8]> {
        let mut begin = self.begin;
        bufs.iter().skip(self.piece).map(move |buf| {
            let bytes = &buf.as_slice()[begin..];
            begin = 0;
            bytes
        })
    }
}

impl<B: IoBuf> Pieces<B> {
    pub(crate) fn new(bufs: Vec<B>, at: Cursor) -> Self {
        let mut pieces = Self { bufs, iovecs: Vec::new(), _loan: Loan::new() };
        pieces.seek(at);
        pieces
    }

    /// Points at other pieces of the same list, without allocating again.
    pub(crate) fn seek(&mut self, at: Cursor) {
        self.iovecs.clear();
        self.iovecs.extend(at.rest(&self.bufs).take(MAX_PIECES).map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }));
    }

    pub(crate) fn bufs(&self) -> &[B] {
        &self.bufs
    }

    pub(crate) fn into_inner(self) -> Vec<B> {
        self.bufs
    }
}

impl<B: IoBuf> OnePiece<B> {
    pub(crate) fn new(bufs: Vec<B>, at: Cursor) -> Self {
        Self { bufs, at, _loan: Loan::new() }
    }

    pub(crate) fn into_inner(self) -> Vec<B> {
        self.bufs
    }
}

// SAFETY: rt_abstract's promise, that the block stays put while the buffer is owned, is the one
// that monoio asks for; what is shown is a part of that block behind its initialized bytes.
unsafe impl<B: IoBufMut> monoio::buf::IoBufMut for Spare<B> {
    fn write_ptr(&mut self) -> *mut u8 {
        // SAFETY: `begin` is at most the capacity, so the result is inside of the block.
        unsafe { self.buf.as_mut_ptr().add(self.begin) }
    }

    fn bytes_total(&mut self) -> usize {
        (self.buf.capacity() - self.begin).min(MAX_MOVE_BYTES)
    }

    unsafe fn set_init(&mut self, len: usize) {
        // SAFETY: `begin` bytes were initialized before, and the caller has just filled `len` more.
        unsafe { self.buf.set_len(self.begin + len) }
    }
}

// SAFETY: as above, for the initialized bytes from `begin` on.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for Rest<B> {
    fn read_ptr(&self) -> *const u8 {
        self.buf.as_slice()[self.begin..].as_ptr()
    }

    fn bytes_init(&self) -> usize {
        (self.buf.len() - self.begin).min(MAX_MOVE_BYTES)
    }
}

// SAFETY: the vectors point at blocks that the pieces own and that do not move with them, and the
// list of vectors is on the heap itself; nothing changes either while the driver owns the value.
unsafe impl<B: IoBuf> monoio::buf::IoVecBuf for Pieces<B> {
    fn read_iovec_ptr(&self) -> *const libc::iovec {
        self.iovecs.as_ptr()
    }

    fn read_iovec_len(&self) -> usize {
        self.iovecs.len()
    }
}

// SAFETY: the bytes belong to one of the pieces, which does not move them.
unsafe impl<B: IoBuf> monoio::buf::IoBuf for OnePiece<B> {
    fn read_ptr(&self) -> *const u8 {
        self.at.current(&self.bufs).unwrap_or_default().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.at.current(&self.bufs).unwrap_or_default().len().min(MAX_MOVE_BYTES)
    }
}

/// Counts one buffer for as long as it lives.
struct Loan;

impl Loan {
    fn new() -> Self {
        LENT.set(LENT.get() + 1);
        Self
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        LENT.set(LENT.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monoio::buf::{IoBuf as _, IoBufMut as _, IoVecBuf as _};

    #[test]
    fn reads_append() {
        let mut buf = Vec::with_capacity(8);
        buf.extend_from_slice(b"ab");
        let mut spare = Spare::new(buf).map_err(|_| "full").unwrap();
        assert_eq!(spare.bytes_total(), 6);
        assert_eq!(lent(), 1);
        // SAFETY: one byte is written inside of the capacity before it is declared.
        unsafe {
            spare.write_ptr().write(b'c');
            spare.set_init(1);
        }
        assert_eq!(spare.into_inner(), b"abc");
        assert_eq!(lent(), 0);
    }

    #[test]
    fn a_full_buffer_comes_back() {
        let buf: Box<[u8]> = b"ab".to_vec().into_boxed_slice();
        let full = Vec::from(buf);
        assert_eq!(Spare::new(full).err(), Some(b"ab".to_vec()));
    }

    #[test]
    fn a_cursor_walks_over_piece_borders_and_empty_pieces() {
        let bufs: Vec<&'static [u8]> = vec![b"", b"abc", b"", b"de", b""];
        let mut at = Cursor::default();
        at.advance(&bufs, 0);
        assert_eq!(at.current(&bufs), Some(&b"abc"[..]));
        at.advance(&bufs, 2);
        assert_eq!(at.current(&bufs), Some(&b"c"[..]));
        let pieces = Pieces::new(bufs, at);
        assert_eq!(pieces.read_iovec_len(), 4);
        at.advance(pieces.bufs(), 1);
        assert_eq!(at.current(pieces.bufs()), Some(&b"de"[..]));
        assert_eq!(OnePiece::new(pieces.into_inner(), at).bytes_init(), 2);
    }

    #[test]
    fn a_cursor_ends() {
        let bufs: Vec<&'static [u8]> = vec![b"ab", b"c"];
        let mut at = Cursor::default();
        at.advance(&bufs, 3);
        assert_eq!(at.current(&bufs), None);
    }

    #[test]
    fn no_more_pieces_than_the_kernel_takes() {
        let bufs: Vec<&'static [u8]> = vec![b"x"; 3000];
        let mut pieces = Pieces::new(bufs, Cursor::default());
        assert_eq!(pieces.read_iovec_len(), MAX_PIECES);
        let mut at = Cursor::default();
        at.advance(pieces.bufs(), 2500);
        pieces.seek(at);
        assert_eq!(pieces.read_iovec_len(), 500);
    }
}
