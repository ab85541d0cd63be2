//! Kernel images as distributions ship them (bzImage; Documentation/arch/x86/boot.rst): reads the version, and unpacks
//! the kernel inside. A guest that starts from the unpacked kernel need not unpack it itself, which is slow under
//! emulation.

use std::io::Read as _;

/// Upper bound of a kernel's size.
const KERNEL_MAX: u64 = 512 << 20;

/// Bytes at the front that contain the version: its pointer has 16 bits.
pub(super) const HEAD: u64 = 128 << 10;

/// The version the image states: `kernel_version`, a pointer at 0x20e to text.
pub(super) fn version(image: &[u8]) -> Option<String> {
    signed(image)?;
    let pointer = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    let text = image.get(usize::from(pointer).checked_add(0x200)?..)?;
    let end = text.iter().position(|byte| matches!(byte, b' ' | 0))?;
    let version = std::str::from_utf8(&text[..end]).ok()?;
    (!version.is_empty() && !version.contains('/')).then(|| version.to_owned())
}

/// The kernel inside, if it is compressed with zstd and is an ELF file: `payload_offset` at 0x248 and `payload_length`
/// at 0x24c, counted from the end of the `setup_sects` (0x1f1) and the boot sector.
pub(super) fn unpacked(image: &[u8]) -> Option<Vec<u8>> {
    signed(image)?;
    let number = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1).checked_mul(512)?.checked_add(number(0x248)?)?;
    let mut packed = image.get(start..start.checked_add(number(0x24c)?)?)?;
    let mut kernel = Vec::new();
    let decoder = ruzstd::decoding::StreamingDecoder::new(&mut packed).ok()?;
    decoder.take(KERNEL_MAX).read_to_end(&mut kernel).ok()?;
    kernel.starts_with(b"\x7fELF").then_some(kernel)
}

fn signed(image: &[u8]) -> Option<()> {
    (image.get(0x202..0x206)? == b"HdrS").then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image() -> Vec<u8> {
        let mut image = vec![0; 0x600];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x310].copy_from_slice(b"6.12.1-amd64 (x)");
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&0x20u32.to_le_bytes());
        image
    }

    /// A zstd frame with `content` uncompressed (RFC 8878): magic, descriptor with an 8-byte size, one raw last block.
    fn stored(content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        frame.extend(u64::try_from(content.len()).unwrap().to_le_bytes());
        let block = u32::try_from(content.len()).unwrap() << 3 | 1;
        frame.extend(&block.to_le_bytes()[..3]);
        frame.extend(content);
        frame
    }

    fn with(content: &[u8]) -> Vec<u8> {
        let mut image = image();
        let packed = stored(content);
        image.truncate(0x400 + 0x20);
        image[0x24c..0x250].copy_from_slice(&u32::try_from(packed.len()).unwrap().to_le_bytes());
        image.extend(packed);
        image
    }

    #[test]
    fn the_version_is_in_the_header() {
        assert_eq!(version(&image()).as_deref(), Some("6.12.1-amd64"));
        assert_eq!(version(b"\x7fELF"), None);
        assert_eq!(version(&image()[..0x304]), None);
    }

    #[test]
    fn the_embedded_kernel_is_extracted_only_if_it_is_an_elf_file() {
        assert_eq!(unpacked(&with(b"\x7fELF and more")).as_deref(), Some(&b"\x7fELF and more"[..]));
        assert_eq!(unpacked(&with(b"something else")), None);
        assert_eq!(unpacked(&image()), None);
    }

    proptest! {
        #[test]
        fn any_image_yields_a_kernel_or_an_error_without_panic(at in 0usize..0x440, byte in any::<u8>()) {
            let mut image = with(b"\x7fELF and more");
            let at = at.min(image.len() - 1);
            image[at] = byte;
            let _ = (version(&image), unpacked(&image));
        }
    }
}
