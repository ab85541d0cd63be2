//! The archive format of the kernel's initial file system: cpio "newc", uncompressed
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! An entry is a head of `070701` and 13 numbers of 8 hexadecimal digits, the name with a final NUL, the content; name
//! and content are each padded to a multiple of 4 bytes. The last entry is called `TRAILER!!!`.

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// An archive being written. Everything belongs to root and has modification time 0.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory.
    pub fn dir(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, FILE | mode, content);
    }

    /// The archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let small = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let links = if mode & DIRECTORY == 0 { 1 } else { 2 };
        let head = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            small(content.len()),
            0,
            0,
            0,
            0,
            small(name.len() + 1),
            0,
        ];
        self.bytes.extend(b"070701");
        for number in head {
            self.bytes.extend(format!("{number:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses an archive, following the format's description.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let (head, rest) = bytes.split_at(110);
            assert_eq!(&head[..6], b"070701");
            let number = |index: usize| {
                let text = std::str::from_utf8(&head[6 + 8 * index..14 + 8 * index]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let name_end = (110 + number(11)).next_multiple_of(4) - 110;
            let name = String::from_utf8(rest[..number(11) - 1].to_vec()).unwrap();
            if name == "TRAILER!!!" {
                return entries;
            }
            let content = rest[name_end..name_end + number(6)].to_vec();
            bytes = &rest[name_end + number(6).next_multiple_of(4)..];
            entries.push((name, u32::try_from(number(1)).unwrap(), content));
        }
    }

    proptest! {
        #[test]
        fn an_archive_reads_back_as_written(files in proptest::collection::vec(
            ("[a-z/]{1,9}", proptest::collection::vec(any::<u8>(), 0..20)), 0..8)) {
            let mut archive = Archive::default();
            archive.dir("dev");
            for (name, content) in &files {
                archive.file(name, 0o644, content);
            }
            let entries = read(&archive.finish());
            prop_assert_eq!(&entries[0], &("dev".to_owned(), 0o040_755, Vec::new()));
            let expected: Vec<_> =
                files.into_iter().map(|(name, content)| (name, 0o100_644, content)).collect();
            prop_assert_eq!(&entries[1..], expected.as_slice());
        }
    }
}
