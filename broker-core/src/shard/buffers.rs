//! Read buffers: few, shared by all connections of a shard; an idle connection holds none.

use bytes::BytesMut;

use super::{ConnKey, Shard};

/// Size of the read buffers that connections share; see [`Shard::read_buffer`].
pub(super) const READ_BUFFER_BYTES: usize = 16 << 10;
/// Read buffers kept for the next read.
const MAX_POOLED_READ_BUFFERS: usize = 64;
/// Partial packets up to this size move to a block of their own size while they wait.
const SMALL_PARTIAL_BYTES: usize = 2 << 10;
impl Shard {
    /// A buffer to read into for this connection: what it has of an unfinished packet, with spare
    /// room behind it.
    pub fn read_buffer(&mut self, key: ConnKey) -> BytesMut {
        let partial = self.conns.get_mut(key.0 as usize).and_then(|conn| conn.partial.take());
        let Some(mut partial) = partial else {
            return self.pooled_buffer();
        };
        if partial.len() <= SMALL_PARTIAL_BYTES {
            let mut buffer = self.pooled_buffer();
            buffer.extend_from_slice(&partial);
            return buffer;
        }
        if partial.capacity() - partial.len() < READ_BUFFER_BYTES / 2 {
            // Grows with what has really arrived, whatever length the packet claims.
            partial.reserve(partial.len().max(READ_BUFFER_BYTES));
        }
        partial
    }

    /// Takes back a buffer from [`Shard::read_buffer`] into which nothing was read.
    pub fn unread_buffer(&mut self, key: ConnKey, buffer: BytesMut) {
        self.keep_rest(key, buffer, 0);
    }

    fn pooled_buffer(&mut self) -> BytesMut {
        self.read_pool.pop().unwrap_or_else(|| BytesMut::with_capacity(READ_BUFFER_BYTES))
    }

    /// Keeps what follows `used` in `buffer` for the connection, in as little memory as it needs,
    /// and the buffer itself for the pool.
    pub(super) fn keep_rest(&mut self, key: ConnKey, mut buffer: BytesMut, used: usize) {
        let rest = buffer.len() - used;
        if let Some(conn) = self.conns.get_mut(key.0 as usize)
            && rest > 0
        {
            if rest <= SMALL_PARTIAL_BYTES {
                conn.partial = Some(BytesMut::from(&buffer[used..]));
            } else {
                let _ = buffer.split_to(used); // moves no bytes, however many are left
                conn.partial = Some(buffer);
                return;
            }
        }
        if buffer.capacity() == READ_BUFFER_BYTES && self.read_pool.len() < MAX_POOLED_READ_BUFFERS
        {
            buffer.clear();
            self.read_pool.push(buffer);
        }
    }
}
