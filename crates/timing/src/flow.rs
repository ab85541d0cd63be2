//! Data flow through a block of code: the loads that wait for other loads.
//!
//! Problem: an emulator executes one instruction after the other, but a CPU overlaps loads that need nothing from each
//! other. Approach: as a block is translated, it is reduced to its loads and stores, each with the values that its
//! address needs, and to the values that remain at its end; `flight.rs` applies them while lines are in flight.
//! A value is in a place: a general or vector register, the flags, or a stack slot at a fixed distance from RSP. Values
//! at the block's entry are distinguished from those that its own loads produce.
//!
//! Limits: branches count as predicted, so a branch waits for nothing; a change of RSP by anything but a constant loses
//! the slots; mask registers, segment bases and the upper sixteen vector registers are always ready.

use std::collections::BTreeMap;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};

/// Places that are registers: 16 general ones, 16 vectors, the flags.
pub const REGISTERS: usize = 33;
/// All places of a block; those from [`REGISTERS`] on are its stack slots.
pub const PLACES: usize = 64;
const FLAGS: usize = 32;
const RSP: usize = 4;
/// Distinct loads of a block; all further ones count as the last.
pub const LOADS: usize = 64;
const LAST_LOAD: u8 = 63;
/// Bytes of a stack slot.
const SLOT: i64 = 8;

/// Values that something depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Places at the block's entry, a bit each.
    pub places: u64,
    /// Loads of the block, a bit each.
    pub loads: u64,
}

impl Needs {
    fn and(self, other: Self) -> Self {
        Self { places: self.places | other.places, loads: self.loads | other.loads }
    }
}

/// A load of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Its number in the block, below [`LOADS`].
    pub number: u8,
    /// The values that its address needs.
    pub needs: Needs,
    /// Places with values at the block's end that depend on it, a bit each.
    pub feeds: u64,
}

/// An instruction's access to memory beyond the near stack; both parts for one that reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// The load, if it reads.
    pub load: Option<Load>,
    /// The values that the address written needs.
    pub stored_at: Needs,
    /// The values that the data written needs.
    pub stored: Needs,
}

/// A block's data flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Each place with another value at the end, and the places at entry that this value needs.
    pub changes: Box<[(u8, u64)]>,
    /// By instruction.
    pub references: Box<[Reference]>,
    /// Slots of the places from [`REGISTERS`] on, in slots from RSP at entry.
    pub slots: Box<[i64]>,
    /// Slots that RSP moves by; `None` if that is not known.
    pub moved: Option<i64>,
    /// Whether it waits for all loads: a fence, a locked access, a reading of the time, or a change of privilege.
    pub waits: bool,
}

impl Flow {
    /// Analyses a block of 64-bit code, one instruction an element. Bytes that are no instruction have no effect.
    #[must_use]
    pub fn of<'a>(instructions: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut block = Block::new();
        for bytes in instructions {
            let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            block.step(&instruction);
        }
        block.end()
    }
}

struct Block {
    factory: InstructionInfoFactory,
    values: [Needs; PLACES],
    slots: BTreeMap<i64, usize>,
    /// RSP less its value at entry, in bytes; `None` once it is unknown.
    rsp: Option<i64>,
    references: Vec<Reference>,
    /// The number of the next one.
    loads: u8,
    waits: bool,
}

impl Block {
    fn new() -> Self {
        let mut values = std::array::from_fn(|place| Needs { places: 1 << place, loads: 0 });
        values[RSP] = Needs::default();
        Self {
            factory: InstructionInfoFactory::new(),
            values,
            slots: BTreeMap::new(),
            rsp: Some(0),
            references: Vec::new(),
            loads: 0,
            waits: false,
        }
    }

    fn step(&mut self, instruction: &Instruction) {
        if instruction.is_invalid() {
            self.references.push(Reference::default());
            return;
        }
        let info = self.factory.info(instruction).clone();
        self.waits |= waits(instruction);
        let mut value = Needs::default();
        for used in info.used_registers().iter().filter(|used| is_read(used.access())) {
            value = value.and(self.register(used.register()));
        }
        if instruction.rflags_read() != 0 {
            value = value.and(self.values[FLAGS]);
        }
        let mut reference = Reference::default();
        for memory in info.used_memory().iter().filter(|memory| is_read(memory.access())) {
            value = value.and(match self.slot(memory) {
                Some(place) => self.values[place],
                None => self.load(memory, &mut reference),
            });
        }
        for memory in info.used_memory().iter().filter(|memory| is_written(memory.access())) {
            match self.slot(memory) {
                Some(place) => self.values[place] = value,
                None => {
                    let address = self.register(memory.base()).and(self.register(memory.index()));
                    reference.stored_at = reference.stored_at.and(address);
                    reference.stored = reference.stored.and(value);
                }
            }
        }
        self.references.push(reference);
        for used in info.used_registers().iter().filter(|used| is_written(used.access())) {
            if let Some(place) = place(used.register()) {
                let whole = used.access() == OpAccess::Write && used.register().size() >= 4;
                let before = if whole { Needs::default() } else { self.values[place] };
                self.values[place] = value.and(before);
            }
        }
        if instruction.rflags_modified() != 0 {
            self.values[FLAGS] = value;
        }
        self.move_stack(
            instruction,
            info.used_registers().iter().any(|used| {
                is_written(used.access()) && used.register().full_register() == Register::RSP
            }),
        );
        self.values[RSP] = Needs::default();
    }

    fn register(&self, register: Register) -> Needs {
        place(register).map_or_else(Needs::default, |place| self.values[place])
    }

    /// The place of a near stack slot. Only accesses that the timing plugin takes for the top of the stack count: all
    /// others are seen with their addresses when they are made.
    fn slot(&mut self, memory: &UsedMemory) -> Option<usize> {
        let distance = memory.displacement().cast_signed();
        let near = memory.base() == Register::RSP && memory.index() == Register::None;
        if !near || !(-128..128).contains(&distance) {
            return None;
        }
        let slot = (self.rsp? + distance).div_euclid(SLOT);
        let next = REGISTERS + self.slots.len();
        match self.slots.get(&slot) {
            Some(place) => Some(*place),
            // With too many slots the first one stands for those beyond.
            None if next >= PLACES => Some(REGISTERS),
            None => {
                self.slots.insert(slot, next);
                Some(next)
            }
        }
    }

    fn load(&mut self, memory: &UsedMemory, reference: &mut Reference) -> Needs {
        let needs = self.register(memory.base()).and(self.register(memory.index()));
        let load = reference.load.get_or_insert_with(|| {
            let number = self.loads;
            self.loads = (number + 1).min(LAST_LOAD);
            Load { number, ..Load::default() }
        });
        load.needs = load.needs.and(needs);
        let number = load.number;
        needs.and(Needs { places: 0, loads: 1 << number })
    }

    fn move_stack(&mut self, instruction: &Instruction, written: bool) {
        if !written {
            return;
        }
        let constant = || {
            let onto_rsp = instruction.op0_kind() == OpKind::Register
                && instruction.op0_register() == Register::RSP;
            if !onto_rsp {
                return None;
            }
            match instruction.mnemonic() {
                Mnemonic::Sub => instruction.try_immediate(1).ok().map(|by| -by.cast_signed()),
                Mnemonic::Add => instruction.try_immediate(1).ok().map(u64::cast_signed),
                Mnemonic::Lea
                    if instruction.memory_base() == Register::RSP
                        && instruction.memory_index() == Register::None =>
                {
                    Some(instruction.memory_displacement64().cast_signed())
                }
                _ => None,
            }
        };
        let by = if instruction.is_stack_instruction() && instruction.mnemonic() != Mnemonic::Leave
        {
            Some(i64::from(instruction.stack_pointer_increment()))
        } else {
            constant()
        };
        self.rsp = self.rsp.zip(by).map(|(rsp, by)| rsp + by);
    }

    fn end(mut self) -> Flow {
        let used = REGISTERS + self.slots.len();
        let values = &self.values[..used];
        let changes = values
            .iter()
            .enumerate()
            .filter(|(place, value)| *place != RSP && value.places != 1 << place);
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let changes = changes.map(|(place, value)| (place as u8, value.places)).collect();
        for load in self.references.iter_mut().filter_map(|reference| reference.load.as_mut()) {
            let fed =
                values.iter().enumerate().filter(|(_, value)| value.loads >> load.number & 1 == 1);
            load.feeds = fed.fold(0, |feeds, (place, _)| feeds | 1 << place);
        }
        let mut slots: Vec<(usize, i64)> =
            self.slots.into_iter().map(|(slot, place)| (place, slot)).collect();
        slots.sort_unstable();
        Flow {
            changes,
            references: self.references.into_boxed_slice(),
            slots: slots.into_iter().map(|(_, slot)| slot).collect(),
            moved: self.rsp.map(|rsp| rsp.div_euclid(SLOT)),
            waits: self.waits,
        }
    }
}

/// The place of a register.
fn place(register: Register) -> Option<usize> {
    let full = register.full_register();
    if full.is_gpr64() || register.is_vector_register() {
        let number = full.number();
        return (number < 16).then_some(if register.is_vector_register() {
            16 + number
        } else {
            number
        });
    }
    None
}

fn is_read(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn is_written(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn waits(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || instruction.is_privileged()
        || (instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_kind() == OpKind::Memory)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Lfence
                | Mnemonic::Mfence
                | Mnemonic::Cpuid
                | Mnemonic::Rdtsc
                | Mnemonic::Rdtscp
                | Mnemonic::Syscall
                | Mnemonic::Sysretq
                | Mnemonic::Iretq
                | Mnemonic::Serialize
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: u64 = 1;
    const RCX: u64 = 1 << 1;
    const RDI: u64 = 1 << 7;

    fn of(code: &[&[u8]]) -> Flow {
        Flow::of(code.iter().copied())
    }

    fn places(flow: &Flow, place: usize) -> Option<u64> {
        flow.changes.iter().find(|(of, _)| usize::from(*of) == place).map(|(_, needs)| *needs)
    }

    #[test]
    fn a_loads_address_and_its_consumers_are_found() {
        // mov (%rdi,%rcx,8),%rax; add %rax,%rdx; mov (%rdx),%rsi
        let code: [&[u8]; 3] =
            [&[0x48, 0x8b, 0x04, 0xcf], &[0x48, 0x01, 0xc2], &[0x48, 0x8b, 0x32]];
        let flow = Flow::of(code);
        let (first, second) = (flow.references[0].load.unwrap(), flow.references[2].load.unwrap());
        assert_eq!(first.needs, Needs { places: RDI | RCX, loads: 0 });
        assert_eq!(second.needs, Needs { places: RDI | RCX | 1 << 2, loads: 1 });
        assert_eq!(first.feeds, RAX | 1 << 2 | 1 << 6 | 1 << FLAGS);
        assert_eq!(second.feeds, 1 << 6);
        assert_eq!(places(&flow, 0), Some(RDI | RCX));
        assert_eq!(places(&flow, 7), None, "it has its value from before");
    }

    #[test]
    fn cleared_registers_need_nothing_and_parts_of_registers_keep_the_rest() {
        // xor %eax,%eax; mov (%rdi),%cl
        let flow = of(&[&[0x31, 0xc0], &[0x8a, 0x0f]]);
        assert_eq!(places(&flow, 0), Some(0));
        assert_eq!(places(&flow, 1), Some(RCX | RDI));
    }

    #[test]
    fn stack_slots_are_distinguished_at_any_rsp() {
        // push %rax; mov 8(%rsp),%rcx; sub $16,%rsp; mov 16(%rsp),%rdi
        let code: [&[u8]; 4] = [
            &[0x50],
            &[0x48, 0x8b, 0x4c, 0x24, 0x08],
            &[0x48, 0x83, 0xec, 0x10],
            &[0x48, 0x8b, 0x7c, 0x24, 0x10],
        ];
        let flow = Flow::of(code);
        assert_eq!((&*flow.slots, flow.moved), (&[-1, 0][..], Some(-3)));
        assert_eq!(places(&flow, 1), Some(1 << (REGISTERS + 1)), "what was on top at entry");
        assert_eq!(places(&flow, 7), Some(RAX), "what was pushed");
        assert!(flow.references.iter().all(|one| *one == Reference::default()));
        // mov %rcx,%rsp
        assert_eq!(of(&[&[0x48, 0x89, 0xcc]]).moved, None);
    }

    #[test]
    fn a_store_needs_its_address_and_its_data() {
        // mov %rax,(%rdi); add %rcx,(%rdi)
        let flow = of(&[&[0x48, 0x89, 0x07], &[0x48, 0x01, 0x0f]]);
        let [store, both] = [flow.references[0], flow.references[1]];
        assert_eq!((store.load, store.stored_at.places), (None, RDI));
        assert_eq!(store.stored.places, RAX | RDI);
        assert_eq!(both.load.unwrap().needs.places, RDI);
        assert_eq!(both.stored, Needs { places: RCX | RDI, loads: 1 });
    }

    #[test]
    fn invalid_code_has_no_effect() {
        let flow = of(&[&[0x06], &[], &[0xff; 16]]);
        assert_eq!(flow.references.len(), 3);
        assert!(flow.changes.is_empty() && !flow.waits);
    }

    #[test]
    fn loads_and_slots_beyond_the_limit_are_merged() {
        let loads = of(&[[0x48, 0x8b, 0x07].as_slice(); 80]);
        assert_eq!(loads.references[79].load.unwrap().number, LAST_LOAD);
        let pushes = of(&[[0x50].as_slice(); 80]);
        assert_eq!((pushes.slots.len(), pushes.moved), (PLACES - REGISTERS, Some(-80)));
    }
}
