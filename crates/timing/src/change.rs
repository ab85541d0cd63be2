//! Changes of translations by the guest: which instruction drops which pages from the TLB, and where it names them.
//!
//! Registers are by number, as instructions encode them: 0 is RAX, 4 RSP, 15 R15.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};

/// A change of translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// MOV to CR3 from a register.
    Root(u8),
    /// INVLPG of the page at base + index * scale + displacement.
    Page {
        /// Number of the base register.
        base: Option<u8>,
        /// Number of the index register.
        index: Option<u8>,
        /// Binary logarithm of the scale.
        scale_log2: u8,
        /// Added to both.
        displacement: i32,
    },
    /// Any other: all pages.
    All,
}

/// The change that an instruction of 64-bit code makes; `None` for most instructions.
#[must_use]
pub fn change(bytes: &[u8]) -> Option<Change> {
    // All these have the two-byte opcodes 0F 01, 0F 22 or the three-byte map 0F 38, after at most a few prefixes.
    let opcode = bytes.iter().position(|byte| *byte == 0x0f)?;
    if !matches!(bytes.get(opcode + 1), Some(0x01 | 0x22 | 0x38)) {
        return None;
    }
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    match (instruction.code(), instruction.mnemonic()) {
        (Code::Mov_cr_r64, _) if instruction.op0_register() == Register::CR3 => {
            Some(number(instruction.op1_register()).map_or(Change::All, Change::Root))
        }
        (Code::Mov_cr_r64, _) if instruction.op0_register() == Register::CR4 => Some(Change::All),
        (_, Mnemonic::Invlpg) => Some(page(&instruction)),
        (_, Mnemonic::Invpcid) => Some(Change::All),
        _ => None,
    }
}

fn page(instruction: &Instruction) -> Change {
    let simple =
        instruction.segment_prefix() == Register::None && !instruction.is_ip_rel_memory_operand();
    let displacement = i32::try_from(instruction.memory_displacement64().cast_signed());
    let register = |register| match register {
        Register::None => Some(None),
        _ => number(register).map(Some),
    };
    let base = register(instruction.memory_base());
    match (simple, displacement, base, register(instruction.memory_index())) {
        (true, Ok(displacement), Some(base), Some(index)) => {
            let scale_log2 = u8::try_from(instruction.memory_index_scale().ilog2()).unwrap_or(0);
            Change::Page { base, index, scale_log2, displacement }
        }
        _ => Change::All,
    }
}

fn number(register: Register) -> Option<u8> {
    register.is_gpr64().then(|| u8::try_from(register.number()).ok()).flatten()
}

/// Kinds of a change, in the lowest bits of its encoding.
const ROOT: u64 = 0;
const PAGE: u64 = 1;
const ALL: u64 = 2;
/// No register.
const NONE: u64 = 16;

impl Change {
    /// As a number, for a place that holds nothing else.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        let optional = |register: Option<u8>| register.map_or(NONE, u64::from);
        match self {
            Self::Root(register) => u64::from(register) << 2 | ROOT,
            Self::Page { base, index, scale_log2, displacement } => {
                u64::from(displacement.cast_unsigned()) << 32
                    | u64::from(scale_log2) << 12
                    | optional(index) << 7
                    | optional(base) << 2
                    | PAGE
            }
            Self::All => ALL,
        }
    }

    /// The inverse of [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let register = |shift: u32| u8::try_from(bits >> shift & 31).unwrap_or(0);
        let optional = |shift| Some(register(shift)).filter(|number| u64::from(*number) < NONE);
        match bits & 3 {
            ROOT => Self::Root(register(2)),
            PAGE => Self::Page {
                base: optional(2),
                index: optional(7),
                scale_log2: u8::try_from(bits >> 12 & 3).unwrap_or(0),
                displacement: u32::try_from(bits >> 32).unwrap_or(0).cast_signed(),
            },
            _ => Self::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_change_translations_are_recognised() {
        let page = |base, index, scale_log2, displacement| {
            Some(Change::Page { base, index, scale_log2, displacement })
        };
        let known: [(&[u8], Option<Change>); 10] = [
            (&[0x0f, 0x22, 0xd8], Some(Change::Root(0))), // mov %rax,%cr3
            (&[0x41, 0x0f, 0x22, 0xdc], Some(Change::Root(12))), // mov %r12,%cr3
            (&[0x0f, 0x22, 0xe1], Some(Change::All)),     // mov %rcx,%cr4
            (&[0x0f, 0x22, 0xc0], None),                  // mov %rax,%cr0
            (&[0x0f, 0x01, 0x3f], page(Some(7), None, 0, 0)), // invlpg (%rdi)
            (&[0x41, 0x0f, 0x01, 0x7c, 0xc6, 0xf8], page(Some(14), Some(0), 3, -8)),
            (&[0x65, 0x0f, 0x01, 0x3f], Some(Change::All)), // invlpg %gs:(%rdi)
            (&[0x66, 0x0f, 0x38, 0x82, 0x04, 0x24], Some(Change::All)), // invpcid (%rsp),%rax
            (&[0x0f, 0x01, 0xf8], None),                    // swapgs
            (&[0x48, 0x8b, 0x07], None),
        ];
        for (bytes, expected) in known {
            assert_eq!(change(bytes), expected, "{bytes:x?}");
            if let Some(change) = expected {
                assert_eq!(Change::from_bits(change.to_bits()), change);
            }
        }
    }
}
