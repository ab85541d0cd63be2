//! The few x86-64 instructions that matter to the model, told by their bytes.

/// What an instruction is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Nothing in particular.
    Plain,
    /// Its store goes past the caches: MOVNTI, MOVNTPS, MOVNTPD, MOVNTDQ, MOVNTQ and their VEX forms.
    NonTemporalStore,
    /// It changes translations: MOV to CR3, INVLPG, INVPCID.
    ChangesTranslations,
    /// PAUSE: a wait, made to be long. Spinning and delay loops are made of it.
    Pause,
    /// It reads the time-stamp counter.
    ReadsTime,
    /// IN or OUT.
    PortAccess,
}

impl Instruction {
    /// What it takes beyond what any instruction takes, in picoseconds: orders of magnitude as on current CPUs, so
    /// that loops which wait for time to pass do not take many more rounds than there.
    #[must_use]
    pub const fn extra_ps(self) -> u64 {
        match self {
            Self::Plain | Self::NonTemporalStore | Self::ChangesTranslations => 0,
            Self::Pause => 40_000,
            Self::ReadsTime => 8_000,
            Self::PortAccess => DEVICE_ACCESS_PS,
        }
    }
}

/// What an access to a device's registers takes, in picoseconds.
pub const DEVICE_ACCESS_PS: u64 = 300_000;

/// Looks at the bytes of one instruction in 64-bit code.
#[must_use]
pub fn decode(bytes: &[u8]) -> Instruction {
    let is_prefix = |byte: &&u8| {
        matches!(byte, 0x66 | 0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67)
            || **byte & 0xf0 == 0x40
    };
    let prefixes = bytes.iter().take_while(is_prefix).count();
    match bytes[prefixes..] {
        // VEX, the opcode map 0F: C5 has it implied, C4 names it.
        [0xc5, _, opcode, ..] => vector(opcode),
        [0xc4, map, _, opcode, ..] if map & 0x1f == 1 => vector(opcode),
        [0x90, ..] if bytes[..prefixes].contains(&0xf3) => Instruction::Pause,
        [0x0f, 0x31, ..] | [0x0f, 0x01, 0xf9, ..] => Instruction::ReadsTime,
        [0xe4..=0xe7 | 0xec..=0xef | 0x6c..=0x6f, ..] => Instruction::PortAccess,
        [0x0f, 0xc3 | 0x2b | 0xe7, ..] => Instruction::NonTemporalStore,
        [0x0f, 0x22, operands, ..] if operands >> 3 & 7 == 3 => Instruction::ChangesTranslations,
        [0x0f, 0x01, operands, ..] if operands >> 3 & 7 == 7 && operands < 0xc0 => {
            Instruction::ChangesTranslations
        }
        [0x0f, 0x38, 0x82, ..] => Instruction::ChangesTranslations,
        _ => Instruction::Plain,
    }
}

fn vector(opcode: u8) -> Instruction {
    match opcode {
        0x2b | 0xe7 => Instruction::NonTemporalStore,
        _ => Instruction::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_past_the_caches_are_recognised() {
        let stores: [&[u8]; 7] = [
            &[0x0f, 0xc3, 0x07],             // movnti %eax,(%rdi)
            &[0x48, 0x0f, 0xc3, 0x47, 0x08], // movnti %rax,8(%rdi)
            &[0x0f, 0x2b, 0x07],             // movntps %xmm0,(%rdi)
            &[0x66, 0x0f, 0xe7, 0x07],       // movntdq %xmm0,(%rdi)
            &[0x66, 0x44, 0x0f, 0xe7, 0x07], // movntdq %xmm8,(%rdi)
            &[0xc5, 0xfd, 0xe7, 0x07],       // vmovntdq %ymm0,(%rdi)
            &[0xc4, 0xc1, 0x7d, 0xe7, 0x00], // vmovntdq %ymm0,(%r8)
        ];
        for bytes in stores {
            assert_eq!(decode(bytes), Instruction::NonTemporalStore, "{bytes:x?}");
        }
    }

    #[test]
    fn changes_of_translation_are_recognised() {
        let changes: [&[u8]; 4] = [
            &[0x0f, 0x22, 0xdf],                   // mov %rdi,%cr3
            &[0x41, 0x0f, 0x22, 0xdc],             // mov %r12,%cr3
            &[0x0f, 0x01, 0x38],                   // invlpg (%rax)
            &[0x66, 0x0f, 0x38, 0x82, 0x44, 0x24], // invpcid
        ];
        for bytes in changes {
            assert_eq!(decode(bytes), Instruction::ChangesTranslations, "{bytes:x?}");
        }
    }

    #[test]
    fn waits_and_their_kin_are_recognised() {
        for (bytes, what) in [
            (&[0xf3, 0x90][..], Instruction::Pause),
            (&[0x0f, 0x31], Instruction::ReadsTime),
            (&[0x0f, 0x01, 0xf9], Instruction::ReadsTime),
            (&[0xec], Instruction::PortAccess),
            (&[0x66, 0xe7, 0x80], Instruction::PortAccess),
        ] {
            assert_eq!(decode(bytes), what, "{bytes:x?}");
            assert!(what.extra_ps() > 0);
        }
    }

    #[test]
    fn others_are_plain() {
        let others: [&[u8]; 9] = [
            &[0x90],
            &[],
            &[0x66],
            &[0x0f],
            &[0x0f, 0x22, 0xc0],       // mov %rax,%cr0
            &[0x0f, 0x01, 0xf8],       // swapgs
            &[0x48, 0x89, 0x07],       // mov %rax,(%rdi)
            &[0xc5, 0xfd, 0x7f, 0x07], // vmovdqa %ymm0,(%rdi)
            &[0x0f, 0x11, 0x07],       // movups %xmm0,(%rdi)
        ];
        for bytes in others {
            assert_eq!(decode(bytes), Instruction::Plain, "{bytes:x?}");
        }
    }
}
