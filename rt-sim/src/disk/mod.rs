//! Disks: what lies on the medium, what lies in the cache of the system, and operations under way.
//!
//! Every operation takes time, during which its node may crash. A write reaches the cache at once
//! when its time is over; a sync copies to the medium what the cache held when it began. A loss of
//! power takes the cache: of each sector of 512 bytes that was not synced either the old or the new
//! content stays, of the names that were not synced the first ones. A process that is killed takes
//! nothing with it.

mod file;
mod image;
mod inode;
mod ops;

pub use self::file::File;
pub(crate) use self::file::{create_dir, open, read_dir, remove_file, rename, sync_dir};
pub(crate) use self::image::Image;
pub(crate) use self::ops::{OpId, Ops};
