//! Recognises the few x86-64 instructions that matter to the model, from their bytes.

/// Category of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Any other instruction.
    Plain,
    /// Stores past the caches: MOVNTI, MOVNTPS, MOVNTPD, MOVNTDQ, MOVNTQ and their VEX forms.
    NonTemporalStore,
    /// Changes translations: MOV to CR3, INVLPG, INVPCID.
    ChangesTranslations,
    /// PAUSE, a deliberate delay. Spin and delay loops consist of it.
    Pause,
    /// Reads the time-stamp counter.
    ReadsTime,
    /// IN or OUT.
    PortAccess,
    /// Accesses only the top of the stack: PUSH, POP, CALL, RET, or a near offset from RSP. That is always in the
    /// first-level cache, so no look-up is needed.
    Stack,
}

impl Instruction {
    /// Time beyond that of any instruction, in picoseconds: orders of magnitude as on current CPUs, so that loops which
    /// wait for time to pass need no more iterations than on those.
    #[must_use]
    pub const fn extra_ps(self) -> u64 {
        match self {
            Self::Plain | Self::NonTemporalStore | Self::ChangesTranslations | Self::Stack => 0,
            Self::Pause => 40_000,
            Self::ReadsTime => 8_000,
            Self::PortAccess => DEVICE_ACCESS_PS,
        }
    }
}

/// Time of an access to a device's registers, in picoseconds.
pub const DEVICE_ACCESS_PS: u64 = 300_000;

/// Number of leading prefix bytes.
fn prefixes(bytes: &[u8]) -> usize {
    let is_prefix = |byte: &&u8| {
        matches!(byte, 0x66 | 0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67)
            || **byte & 0xf0 == 0x40
    };
    bytes.iter().take_while(is_prefix).count()
}

/// Whether control may go back from the end of a block that ends with this instruction: false for a direct jump, branch
/// or call forward. Code can't run for ever without going back, so checking such blocks is enough.
#[must_use]
pub fn may_go_back(last: &[u8]) -> bool {
    let distance = match last[prefixes(last)..] {
        [0x70..=0x7f | 0xeb | 0xe0..=0xe3, distance] => distance,
        [0xe8 | 0xe9, _, _, _, distance] => distance,
        [0x0f, 0x80..=0x8f, _, _, _, distance] => distance,
        _ => return true,
    };
    distance.cast_signed() < 0
}

/// Categorises one instruction of 64-bit code.
#[must_use]
pub fn decode(bytes: &[u8]) -> Instruction {
    let prefixes = prefixes(bytes);
    match bytes[prefixes..] {
        // VEX, the opcode map 0F: implied by C5, named by C4.
        [0xc5, _, opcode, ..] => vector(opcode),
        [0xc4, map, _, opcode, ..] if map & 0x1f == 1 => vector(opcode),
        [0x50..=0x5f | 0xe8 | 0xc3 | 0xc9, ..] => Instruction::Stack,
        [opcode, operands, 0x24, ..] if takes_operands(opcode) && is_near_rsp(operands) => {
            Instruction::Stack
        }
        [0x0f, 0x10 | 0x11 | 0x28 | 0x29 | 0x6f | 0x7f | 0xb6..=0xbf, operands, 0x24, ..]
            if is_near_rsp(operands) =>
        {
            Instruction::Stack
        }
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

/// Whether a one-byte opcode has an operand in a register or in memory, and no other memory operand: arithmetic, MOV,
/// TEST, XCHG, shifts, INC, DEC, and CALL, JMP and PUSH through memory.
fn takes_operands(opcode: u8) -> bool {
    match opcode {
        0x00..=0x3f => opcode & 7 < 4,
        0x63
        | 0x80..=0x8b
        | 0xc0
        | 0xc1
        | 0xc6
        | 0xc7
        | 0xd0..=0xd3
        | 0xf6
        | 0xf7
        | 0xfe
        | 0xff => true,
        _ => false,
    }
}

/// Whether operands, when followed by the byte 24, are in memory at RSP with no index and no or an 8-bit offset.
fn is_near_rsp(operands: u8) -> bool {
    matches!(operands & 0xc7, 0x04 | 0x44)
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
    fn waiting_instructions_are_recognised() {
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
    fn straight_line_blocks_are_distinguished_from_loops() {
        let forward: [&[u8]; 4] = [
            &[0x74, 0x10],             // je +16
            &[0x0f, 0x85, 0, 1, 0, 0], // jne +256
            &[0xe8, 0, 1, 0, 0],       // call +256
            &[0x3e, 0xe9, 0, 1, 0, 0], // jmp +256
        ];
        assert!(forward.iter().all(|bytes| !may_go_back(bytes)));
        let back: [&[u8]; 7] = [
            &[0x75, 0xf0],                      // jne -16
            &[0x0f, 0x84, 0, 0xff, 0xff, 0xff], // je -256
            &[0xe8, 0, 0xff, 0xff, 0xff],       // call -256
            &[0xc3],                            // ret
            &[0xff, 0xe0],                      // jmp *%rax
            &[0x48, 0x89, 0x07],                // mov %rax,(%rdi): the block is cut here
            &[],
        ];
        assert!(back.iter().all(|bytes| may_go_back(bytes)));
    }

    #[test]
    fn the_top_of_the_stack_is_recognised() {
        let stack: [&[u8]; 10] = [
            &[0x48, 0x83, 0x7c, 0x24, 8, 0], // cmpq $0,8(%rsp)
            &[0x0f, 0xb6, 0x44, 0x24, 0x0f], // movzbl 0xf(%rsp),%eax
            &[0x0f, 0x29, 0x04, 0x24],       // movaps %xmm0,(%rsp)
            &[0x55],                         // push %rbp
            &[0x41, 0x5f],                   // pop %r15
            &[0xe8, 0, 0, 0, 0],             // call
            &[0xc3],                         // ret
            &[0x48, 0x8b, 0x04, 0x24],       // mov (%rsp),%rax
            &[0x48, 0x89, 0x5c, 0x24, 0x18], // mov %rbx,0x18(%rsp)
            &[0x44, 0x8b, 0x7c, 0x24, 0xf8], // mov -8(%rsp),%r15d
        ];
        for bytes in stack {
            assert_eq!(decode(bytes), Instruction::Stack, "{bytes:x?}");
        }
    }

    #[test]
    fn other_instructions_are_plain() {
        let others: [&[u8]; 12] = [
            &[0x48, 0x83, 0xc4, 0x24],       // add $0x24,%rsp
            &[0x48, 0x8b, 0x04, 0xc4],       // mov (%rsp,%rax,8),%rax
            &[0x48, 0x8b, 0x84, 0x24, 0, 1], // mov 0x100(%rsp),%rax
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
