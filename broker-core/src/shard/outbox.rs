//! Bytes on their way to one connection's socket.

use bytes::Bytes;
use mqtt::session::{Draft, SHARE_PAYLOAD_BYTES};
use mqtt::wire::{PublishHead, Version, encode_publish_head};
use rt_abstract::Piece;

/// Encoded packets in order: small ones copied into one open block, large payloads as shared
/// pieces between blocks. An empty outbox holds no memory. Bounded by whoever pushes: see
/// `Limits::max_outbox_bytes`.
#[derive(Debug, Default)]
pub struct Outbox {
    done: Vec<Piece>,
    open: Vec<u8>,
    /// Bytes in `done`.
    done_bytes: usize,
}

/// What a writer takes at once.
#[derive(Debug)]
pub enum Output {
    /// One block: the common case.
    Block(Vec<u8>),
    /// Several pieces.
    Pieces(Vec<Piece>),
}

/// Blocks that were written, for the next outbox that opens one.
#[derive(Debug, Default)]
pub struct BlockPool {
    blocks: Vec<Vec<u8>>,
}

impl Outbox {
    /// Bytes waiting.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.done_bytes + self.open.len()
    }

    /// The block that packets are encoded into.
    #[inline]
    pub fn block(&mut self, pool: &mut BlockPool) -> &mut Vec<u8> {
        if self.open.capacity() == 0 {
            self.open = pool.take();
        }
        &mut self.open
    }

    /// Encodes a PUBLISH; a large payload is shared, not copied, when it has an owner.
    #[inline]
    pub fn publish(
        &mut self,
        version: Version,
        head: &PublishHead<'_>,
        draft: &Draft<'_>,
        pool: &mut BlockPool,
    ) {
        let block = self.block(pool);
        encode_publish_head(block, version, head);
        match draft.owner {
            Some(owner) if draft.payload.len() >= SHARE_PAYLOAD_BYTES => {
                self.share(owner.slice_ref(draft.payload));
            }
            _ => block.extend_from_slice(draft.payload),
        }
    }

    /// Takes everything that waits.
    pub fn take(&mut self) -> Option<Output> {
        if self.done.is_empty() {
            return (!self.open.is_empty()).then(|| Output::Block(std::mem::take(&mut self.open)));
        }
        self.close_block();
        self.done_bytes = 0;
        Some(Output::Pieces(std::mem::take(&mut self.done)))
    }

    /// Drops everything that waits.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn share(&mut self, payload: Bytes) {
        self.close_block();
        self.done_bytes += payload.len();
        self.done.push(Piece::Shared(payload));
    }

    fn close_block(&mut self) {
        if !self.open.is_empty() {
            self.done_bytes += self.open.len();
            self.done.push(Piece::Owned(std::mem::take(&mut self.open)));
        }
    }
}

impl Output {
    /// How many bytes it holds.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Pieces(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Owned(bytes) => bytes.len(),
                    Piece::Shared(bytes) => bytes.len(),
                })
                .sum(),
        }
    }
}

impl BlockPool {
    /// Blocks kept; further ones are freed.
    const MAX_BLOCKS: usize = 64;
    /// Larger blocks are freed: one burst must not stay in memory.
    const MAX_BLOCK_BYTES: usize = 64 << 10;
    /// A new block: a few small packets without growing.
    const NEW_BLOCK_BYTES: usize = 512;

    /// A block, empty.
    pub fn take(&mut self) -> Vec<u8> {
        self.blocks.pop().unwrap_or_else(|| Vec::with_capacity(Self::NEW_BLOCK_BYTES))
    }

    /// Gives a block back.
    pub fn put(&mut self, mut block: Vec<u8>) {
        if block.capacity() <= Self::MAX_BLOCK_BYTES && self.blocks.len() < Self::MAX_BLOCKS {
            block.clear();
            self.blocks.push(block);
        }
    }
}
