//! Input that may be compressed: gzip and zstd are recognised by their first bytes and unpacked on the way.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: u32 = 0xfd2f_b528;
/// A zstd frame without content, with four bits of its user's.
const SKIPPED: u32 = 0x184d_2a50;

/// A reader of the unpacked input.
///
/// # Errors
/// The first bytes can't be read.
pub(crate) fn unpacked(
    mut input: impl Read + Send + 'static,
) -> io::Result<Box<dyn BufRead + Send>> {
    let mut start = Vec::new();
    input.by_ref().take(4).read_to_end(&mut start)?;
    let magic = start.as_slice().try_into().map(u32::from_le_bytes);
    let is_zstd = magic.is_ok_and(|magic| magic == ZSTD || magic & !0xf == SKIPPED);
    let is_gzip = start.starts_with(GZIP);
    let whole = Cursor::new(start).chain(BufReader::with_capacity(BUFFER, input));
    Ok(if is_gzip {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(
            BUFFER,
            Frames { rest: whole, decoder: FrameDecoder::new() },
        ))
    } else {
        Box::new(whole)
    })
}

/// The content of zstd frames, one after the other.
struct Frames<R> {
    rest: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                if self.rest.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.open()?;
            }
            if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let most = BlockDecodingStrategy::UptoBytes(into.len());
                self.decoder.decode_blocks(&mut self.rest, most).map_err(io::Error::other)?;
            }
            let count = self.decoder.read(into)?;
            if count > 0 {
                return Ok(count);
            }
        }
    }
}

impl<R: BufRead> Frames<R> {
    /// Reads the head of the next frame, or skips one without content.
    fn open(&mut self) -> io::Result<()> {
        match self.decoder.init(&mut self.rest) {
            Ok(()) => Ok(()),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let skipped =
                    io::copy(&mut self.rest.by_ref().take(length.into()), &mut io::sink())?;
                if skipped == u64::from(length) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    fn all(input: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        unpacked(Cursor::new(input))?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn text() -> Vec<u8> {
        (0..40_000_u32).flat_map(|line| format!("{line},a,{}\n", line % 7).into_bytes()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut into = GzEncoder::new(Vec::new(), Compression::fast());
        into.write_all(bytes).unwrap();
        into.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    #[test]
    fn compressed_input_is_unpacked_and_other_input_stays() {
        let whole = text();
        let (first, second) = whole.split_at(100_001);
        let user = [0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        for input in [
            whole.clone(),
            gzip(&whole),
            [gzip(first), gzip(second)].concat(),
            zstd(&whole),
            [zstd(first), user.to_vec(), zstd(second)].concat(),
        ] {
            assert!(all(input).unwrap() == whole);
        }
        for short in [&b""[..], b"a", b"\x1f", b"abc"] {
            assert_eq!(all(short.to_vec()).unwrap(), short);
        }
    }

    #[test]
    fn compressed_input_that_is_cut_off_is_an_error() {
        for packed in [gzip(&text()), zstd(&text())] {
            for cut in [packed.len() / 2, packed.len() - 5] {
                assert!(all(packed[..cut].to_vec()).is_err());
            }
        }
        assert!(all(vec![0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1]).is_err());
    }
}
