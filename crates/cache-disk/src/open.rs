//! Decides whether a tier may be opened: on an existing tier, or on a file or device without foreign data.

use std::io;
use std::path::Path;

use super::buffer::BLOCK;
use super::config::{Config, Geometry, TABLE_AT};
use super::device::Device;
use super::error::Error;
use super::superblock::{Held, Superblock, VERSION, load};
use super::vacant::{self, Others};
use super::words::wide;

/// Checks whether a tier can be opened or created here, without writing. `None` if it has to be created.
pub(super) fn look(
    device: &dyn Device,
    path: &Path,
    config: &Config,
) -> Result<Option<Superblock>, Error> {
    let geometry = Geometry::new(config)?;
    let fail = |source| Error::Io { path: path.into(), call: "read", source };
    let foreign = |Others { at, name }| Error::Foreign { path: path.into(), found: name, at };
    let len = device.bytes().map_err(fail)?;
    match load(device).map_err(fail)? {
        Held::Super(found) => {
            // Formatting a device for another use may leave the superblocks intact.
            let front = vacant::part(device, len, 2 * wide(BLOCK)..TABLE_AT).map_err(fail)?;
            let end = vacant::label_at_end(device, len, found.bytes).map_err(fail)?;
            if let Some(others) = front.or(end) {
                return Err(foreign(others));
            }
            match found.differs(&geometry) {
                None => Ok(Some(found)),
                Some(_) if config.format && config.bytes <= found.bytes => Ok(None),
                Some(_) if config.format => {
                    // A larger tier overwrites the bytes behind the present one.
                    let behind = vacant::behind(device, len, found.bytes).map_err(fail)?;
                    behind.map_or(Ok(None), |others| Err(foreign(others)))
                }
                Some((what, found, asked)) => {
                    Err(Error::Geometry { path: path.into(), what, found, asked })
                }
            }
        }
        Held::Version(found) => Err(Error::Version { path: path.into(), found, known: VERSION }),
        Held::Nothing | Held::Damaged | Held::Foreign if len == 0 => Ok(None),
        Held::Nothing | Held::Damaged | Held::Foreign => {
            match vacant::others(device, len).map_err(fail)? {
                Some(others) => Err(foreign(others)),
                None if config.format => Ok(None),
                None => Err(Error::Unformatted { path: path.into(), bytes: len }),
            }
        }
    }
}

/// The same, then reserves the space and writes the superblocks of a new tier. Returns whether it is new.
pub(super) fn prepare(
    device: &dyn Device,
    path: &Path,
    config: &Config,
) -> Result<(Superblock, bool), Error> {
    let found = look(device, path, config)?;
    device.reserve(config.bytes).map_err(|source| reserving(path, config, source))?;
    if let Some(found) = found {
        return Ok((found, false));
    }
    let mut made = Superblock::new(&Geometry::new(config)?, device.unique(), device.unique());
    let stored = made.store(device);
    stored.map_err(|source| Error::Io { path: path.into(), call: "write", source })?;
    Ok((made, true))
}

/// The error of a device without enough space.
pub(super) fn reserving(path: &Path, config: &Config, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::Full { path: path.into(), bytes: config.bytes }
        }
        _ => Error::Io { path: path.into(), call: "reserve", source },
    }
}
