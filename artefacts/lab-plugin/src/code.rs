// SPDX-License-Identifier: GPL-2.0-or-later
//! The data flow of translated blocks, kept for good and once for each different code: QEMU translates the same code
//! many times, and does not report when it drops a translation.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use nearfar_timing::Origin;
use nearfar_timing::flow::Flow;

type Origins = &'static [Origin<'static>];

static KNOWN: LazyLock<Mutex<HashMap<Box<[u8]>, Origins>>> = LazyLock::new(Mutex::default);

/// The code of a block: of each instruction the length, then its bytes. The length counts, because the same bytes are
/// other instructions in another mode of the CPU.
#[derive(Default)]
pub(crate) struct Code(Vec<u8>);

impl Code {
    /// Adds an instruction, of at most 16 bytes.
    pub(crate) fn push(&mut self, instruction: &[u8]) {
        self.0.extend(u8::try_from(instruction.len()));
        self.0.extend_from_slice(instruction);
    }

    /// An origin for each of its instructions.
    pub(crate) fn origins(self) -> Origins {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origins) = known.get(self.0.as_slice()) {
            return origins;
        }
        let mut rest = self.0.as_slice();
        let instructions = std::iter::from_fn(|| {
            let (length, after) = rest.split_first()?;
            let (one, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some(one)
        });
        let flow: &'static Flow = Box::leak(Box::new(Flow::of(instructions)));
        let origins: Vec<Origin<'static>> =
            (0..flow.references.len()).map(|at| Origin { flow, at }).collect();
        let origins: Origins = Box::leak(origins.into_boxed_slice());
        known.insert(self.0.into_boxed_slice(), origins);
        origins
    }
}
