//! The content of one file, on the medium and in the cache.

use std::collections::BTreeMap;

/// What a loss of power keeps or takes as a whole.
pub(crate) const SECTOR: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Inode {
    /// What programs see.
    cache: Vec<u8>,
    /// What is on the medium.
    medium: Vec<u8>,
    /// Sectors where the cache may differ, and whether a sync still can make them durable.
    dirty: BTreeMap<usize, bool>,
    pub opens: usize,
}

/// What a sync that has begun makes durable.
#[derive(Debug)]
pub(crate) struct Syncing {
    sectors: Vec<(usize, Vec<u8>)>,
    len: usize,
}

/// Of what was not durable.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    pub kept: usize,
    pub lost: usize,
}

impl Inode {
    pub fn bytes(&self) -> &[u8] {
        &self.cache
    }

    pub fn len(&self) -> u64 {
        self.cache.len() as u64
    }

    pub fn read(&self, offset: u64, room: usize) -> &[u8] {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(self.cache.len());
        let end = begin.saturating_add(room).min(self.cache.len());
        &self.cache[begin..end]
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.cache.len() {
            self.resize(end);
        }
        self.cache[offset..end].copy_from_slice(bytes);
        self.touch(offset, end);
    }

    pub fn resize(&mut self, len: usize) {
        let (from, to) = (self.cache.len().min(len), self.cache.len().max(len));
        self.cache.resize(len, 0);
        self.touch(from, to);
    }

    fn touch(&mut self, from: usize, to: usize) {
        if from < to {
            self.dirty.extend((from / SECTOR..to.div_ceil(SECTOR)).map(|sector| (sector, true)));
        }
    }

    /// Bytes that a loss of power could take.
    pub fn unsynced_bytes(&self) -> u64 {
        (self.dirty.len() * SECTOR) as u64
    }

    /// A sync begins.
    pub fn begin_sync(&mut self) -> Syncing {
        let wanted = self.dirty.iter().filter(|&(_, &wanted)| wanted);
        let sectors = wanted.map(|(&sector, _)| (sector, part(&self.cache, sector).to_vec()));
        Syncing { sectors: sectors.collect(), len: self.cache.len() }
    }

    /// It has ended well.
    pub fn end_sync(&mut self, syncing: Syncing) {
        if self.medium.len() < syncing.len {
            self.medium.resize(syncing.len, 0);
        }
        for (sector, bytes) in syncing.sectors {
            self.store(sector, &bytes);
            // What was written meanwhile is still in danger.
            if part(&self.cache, sector) == bytes {
                self.dirty.remove(&sector);
            }
        }
        self.medium.truncate(syncing.len);
    }

    /// It has failed: the system takes everything for written, and no later sync writes it.
    pub fn fail_sync(&mut self) {
        self.dirty.values_mut().for_each(|wanted| *wanted = false);
    }

    /// The power is gone: of each sector that is not durable `keep` says whether the new content is
    /// found. The file has the length that its last kept sector needs, at most the cache's.
    pub fn lose(&mut self, mut keep: impl FnMut() -> bool) -> Lost {
        let mut counted = Lost::default();
        let (cache_len, mut len) = (self.cache.len(), self.medium.len());
        if cache_len < len && keep() {
            len = cache_len;
            self.medium.truncate(len);
        }
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            let bytes = part(&self.cache, sector).to_vec();
            if bytes.is_empty() || bytes == part(&self.medium, sector) {
                continue;
            }
            if keep() {
                counted.kept += 1;
                let end = sector * SECTOR + bytes.len();
                if end > self.medium.len() {
                    self.medium.resize(end, 0);
                }
                self.store(sector, &bytes);
            } else {
                counted.lost += 1;
            }
        }
        self.cache.clone_from(&self.medium);
        counted
    }

    /// Flips a bit on the medium and, where it is not changed there, in the cache.
    pub fn flip(&mut self, byte: usize, bit: u8) {
        for content in [&mut self.medium, &mut self.cache] {
            if let Some(value) = content.get_mut(byte) {
                *value ^= 1 << (bit % 8);
            }
        }
    }

    fn store(&mut self, sector: usize, bytes: &[u8]) {
        let begin = sector * SECTOR;
        let end = (begin + bytes.len()).min(self.medium.len());
        if begin < end {
            self.medium[begin..end].copy_from_slice(&bytes[..end - begin]);
        }
    }
}

/// The bytes of a sector, less than [`SECTOR`] at the end.
fn part(content: &[u8], sector: usize) -> &[u8] {
    let begin = (sector * SECTOR).min(content.len());
    &content[begin..(begin + SECTOR).min(content.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synced(inode: &mut Inode) {
        let syncing = inode.begin_sync();
        inode.end_sync(syncing);
    }

    #[test]
    fn what_was_synced_stays() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 1_000]);
        synced(&mut inode);
        assert_eq!(inode.unsynced_bytes(), 0);
        inode.write(500, &[2; 1_000]);
        inode.lose(|| false);
        assert_eq!(inode.bytes(), [1; 1_000]);
    }

    #[test]
    fn sectors_are_lost_one_by_one() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 2_048]);
        synced(&mut inode);
        inode.write(0, &[2; 2_048]);
        let mut keep = [true, false, false, true].into_iter();
        let lost = inode.lose(|| keep.next().unwrap_or(false));
        assert_eq!((lost.kept, lost.lost), (2, 2));
        let firsts: Vec<u8> = inode.bytes().chunks(SECTOR).map(|sector| sector[0]).collect();
        assert_eq!(firsts, [2, 1, 1, 2]);
    }

    #[test]
    fn a_file_grows_as_far_as_its_kept_sectors() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 1_500]);
        let mut keep = [false, true, false].into_iter();
        inode.lose(|| keep.next().unwrap_or(false));
        assert_eq!(inode.len(), 1_024);
        assert_eq!((inode.bytes()[0], inode.bytes()[600]), (0, 1));
    }

    #[test]
    fn a_sync_takes_what_was_there_when_it_began() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 512]);
        let syncing = inode.begin_sync();
        inode.write(0, &[2; 512]);
        inode.write(512, &[2; 100]);
        inode.end_sync(syncing);
        inode.lose(|| false);
        assert_eq!(inode.bytes(), [1; 512]);
    }

    #[test]
    fn what_a_failed_sync_was_for_is_never_durable() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 512]);
        inode.fail_sync();
        synced(&mut inode);
        inode.lose(|| false);
        assert!(inode.bytes().iter().all(|&byte| byte == 0));
        inode.write(0, &[3; 512]);
        synced(&mut inode);
        inode.lose(|| false);
        assert_eq!(inode.bytes(), [3; 512]);
    }

    #[test]
    fn a_cut_that_was_not_synced_has_happened_or_not() {
        for cut in [false, true] {
            let mut inode = Inode::default();
            inode.write(0, &[1; 2_000]);
            synced(&mut inode);
            inode.resize(100);
            inode.lose(|| cut);
            assert_eq!(inode.bytes(), &[1; 2_000][..if cut { 100 } else { 2_000 }]);
        }
    }

    #[test]
    fn a_cut_that_was_synced_is_cut() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 2_000]);
        synced(&mut inode);
        inode.resize(100);
        synced(&mut inode);
        inode.lose(|| false);
        assert_eq!(inode.len(), 100);
    }
}
