//! Reading into the spare capacity of a buffer: the only `unsafe` of this crate
//! besides the registration in the driver.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rt_abstract::IoBufMut;
use rustix::io::Result;
use rustix::net::RecvFlags;

/// Bytes that fit into `buf` without allocating.
pub(crate) fn room<B: IoBufMut>(buf: &B) -> usize {
    buf.capacity() - buf.len()
}

/// One `recv` to the end of `buf`; returns how many bytes arrived.
pub(crate) fn recv<B: IoBufMut>(fd: impl AsFd, buf: &mut B) -> Result<usize> {
    fill(buf, |spare| {
        let ((filled, _), _) = rustix::net::recv(fd, spare, RecvFlags::empty())?;
        Ok(filled)
    })
}

/// One `pread` to the end of `buf`; returns how many bytes arrived.
pub(crate) fn pread<B: IoBufMut>(fd: impl AsFd, buf: &mut B, offset: u64) -> Result<usize> {
    fill(buf, |spare| {
        let (filled, _) = rustix::io::pread(fd, spare, offset)?;
        Ok(filled)
    })
}

/// `read` returns the front part of the slice that it was given.
fn fill<B: IoBufMut>(
    buf: &mut B,
    read: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<&mut [u8]>,
) -> Result<usize> {
    let (len, room) = (buf.len(), room(buf));
    // SAFETY: `IoBufMut` promises `capacity` writable bytes, of which the first `len` are in use;
    // the buffer is borrowed mutably for as long as the slice lives.
    let spare = unsafe { std::slice::from_raw_parts_mut(buf.as_mut_ptr().add(len).cast(), room) };
    let count = read(spare)?.len();
    // SAFETY: the system call initialized `count` bytes behind the first `len`.
    unsafe { buf.set_len(len + count) };
    Ok(count)
}
