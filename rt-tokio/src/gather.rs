//! Walking over the pieces of a vectored write.

use std::io::IoSlice;

use rt_abstract::IoBuf;

/// The most pieces that one system call takes (IOV_MAX on Linux).
const MAX_PIECES: usize = 1024;

/// Up to this many pieces are listed on the stack: 1 KiB.
const FEW_PIECES: usize = 64;

/// How far a vectored write has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    piece: usize,
    byte: usize,
}

impl Position {
    /// Hands the pieces from here on, without empty ones and as many as one system call takes, to
    /// `write`, together with their number of bytes. `None` when no byte is left.
    pub(crate) fn gather<B: IoBuf, T>(
        self,
        bufs: &[B],
        write: impl FnOnce(&[IoSlice<'_>], usize) -> T,
    ) -> Option<T> {
        let (mut few, mut many);
        let list: &mut [IoSlice<'_>] = if bufs.len() - self.piece <= FEW_PIECES {
            few = [IoSlice::new(&[]); FEW_PIECES];
            &mut few
        } else {
            many = vec![IoSlice::new(&[]); MAX_PIECES.min(bufs.len() - self.piece)];
            &mut many
        };
        let (mut count, mut bytes) = (0, 0);
        let mut skip = self.byte;
        for buf in &bufs[self.piece..] {
            let rest = &buf.as_slice()[skip..];
            skip = 0;
            if rest.is_empty() {
                continue;
            }
            if count == list.len() {
                break;
            }
            list[count] = IoSlice::new(rest);
            count += 1;
            bytes += rest.len();
        }
        (count > 0).then(|| write(&list[..count], bytes))
    }

    /// Moves on by `count` bytes, which are left.
    pub(crate) fn advance<B: IoBuf>(&mut self, bufs: &[B], mut count: usize) {
        while count > 0 {
            let rest = bufs[self.piece].len() - self.byte;
            if count < rest {
                self.byte += count;
                return;
            }
            count -= rest;
            self.piece += 1;
            self.byte = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(position: Position, bufs: &[Vec<u8>]) -> Option<(usize, Vec<u8>)> {
        position.gather(bufs, |slices, bytes| {
            let flat: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(flat.len(), bytes);
            (slices.len(), flat)
        })
    }

    #[test]
    fn empty_pieces_are_skipped() {
        let bufs = [vec![], vec![1, 2], vec![], vec![3], vec![]];
        let mut position = Position::default();
        assert_eq!(rest(position, &bufs), Some((2, vec![1, 2, 3])));
        position.advance(&bufs, 1);
        assert_eq!(rest(position, &bufs), Some((2, vec![2, 3])));
        position.advance(&bufs, 1);
        assert_eq!(rest(position, &bufs), Some((1, vec![3])));
        position.advance(&bufs, 1);
        assert_eq!(rest(position, &bufs), None);
        assert_eq!(rest(Position::default(), &[]), None);
    }

    #[test]
    fn one_call_takes_a_bounded_number() {
        for pieces in [1, FEW_PIECES, FEW_PIECES + 1, MAX_PIECES, MAX_PIECES + 1, 5_000] {
            let bufs = vec![vec![7]; pieces];
            let mut position = Position::default();
            let mut total = 0;
            while let Some((count, bytes)) = rest(position, &bufs) {
                assert!(count <= MAX_PIECES && bytes.len() == count);
                position.advance(&bufs, count);
                total += count;
            }
            assert_eq!(total, pieces);
        }
    }
}
