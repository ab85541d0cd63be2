//! How a batch is divided between a device and the CPU: pure, no time, no memory.
//!
//! Both work at once, so a batch takes as long as the slower of them: the device's share is such that both are done at once
//! ([`Rates::share`]). A device takes a while for whatever it is given, and the rest by bytes; the CPU goes by bytes alone.
//! Which items make up the share: the largest, as each descriptor costs the same, and none below a size, as one costs more
//! than the CPU takes for it ([`split`]). One item may be cut where the share ends, on a whole line, if it is large; else it
//! goes where the batch is done sooner. Where rates come from: [`tuner`](super::tuner).

/// Bytes of a line; an item is cut at a multiple.
const LINE: usize = 64;
/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// What may go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitConfig {
    /// Items below so many bytes are the CPU's; no part of one that is cut is smaller.
    pub small: usize,
    /// Items of so many bytes or more may be cut.
    pub cut_from: usize,
}

impl Default for SplitConfig {
    fn default() -> Self {
        Self { small: 2 << 10, cut_from: 16 << 10 }
    }
}

/// Some bytes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which item.
    pub item: usize,
    /// From which byte.
    pub from: usize,
    /// How many.
    pub length: usize,
}

/// Who copies what. Every byte of every item is in one part of one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The device's, largest first.
    pub device: Vec<Part>,
    /// The CPU's, in their order but for what was cut, which is last.
    pub cpu: Vec<Part>,
    /// Items by size, to work in.
    order: Vec<usize>,
}

/// How fast device and CPU are. Rates are bytes a second; where there is no floor, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Nanoseconds that the device takes besides.
    pub floor_ns: u64,
    /// The device.
    pub device: u64,
    /// The CPU.
    pub cpu: u64,
}

impl Rates {
    /// Without the device.
    pub const CPU_ALONE: Self = Self { floor_ns: 0, device: 0, cpu: 1 };

    /// A share in percent, whatever it is of.
    #[must_use]
    pub fn fixed(percent: u64) -> Self {
        let percent = percent.min(100);
        Self { floor_ns: 0, device: percent, cpu: 100 - percent }
    }

    /// Rates that products of are no larger than numbers go.
    fn bounded(self) -> (u128, u128, u128) {
        let bounded = |value: u64, bits: u32| u128::from(value.min(1 << bits));
        (bounded(self.floor_ns, 40), bounded(self.device, 44), bounded(self.cpu, 44))
    }

    /// Bytes that the device is to have of `total`, of which `eligible` may be its, for both to be done at once.
    #[must_use]
    pub fn share(self, total: u64, eligible: u64) -> u64 {
        let (floor, device, cpu) = self.bounded();
        // While the device takes its floor, the CPU does as much; the rest is divided as rates are.
        let rest = (u128::from(total.min(1 << 50)) * SECOND).saturating_sub(floor * cpu);
        let share = (rest * device).checked_div(SECOND * (device + cpu)).unwrap_or(0);
        u64::try_from(share).unwrap_or(u64::MAX).min(eligible)
    }

    /// How long a batch takes of which the device has one part and the CPU the other, multiplied by both rates.
    fn time(self, device_bytes: u64, cpu_bytes: u64) -> u128 {
        let (floor, device, cpu) = self.bounded();
        let bytes = |bytes: u64| u128::from(bytes.min(1 << 40));
        let devices = match device_bytes {
            0 => 0,
            some => (floor * device / SECOND + bytes(some)) * cpu,
        };
        devices.max(bytes(cpu_bytes) * device)
    }
}

/// Bytes of items that may be the device's.
#[must_use]
pub fn eligible(lengths: &[usize], config: SplitConfig) -> u64 {
    lengths.iter().filter(|length| **length >= config.small).map(|length| *length as u64).sum()
}

/// Gives the device its share of items of these lengths, and the CPU the others.
pub fn split(lengths: &[usize], rates: Rates, config: SplitConfig, plan: &mut Plan) {
    let whole = |item: usize| Part { item, from: 0, length: lengths[item] };
    let Plan { device, cpu, order } = plan;
    device.clear();
    cpu.clear();
    order.clear();
    order.extend((0..lengths.len()).filter(|item| lengths[*item] >= config.small.max(1)));
    order.sort_by_key(|item| (std::cmp::Reverse(lengths[*item]), *item));
    let total: u64 = lengths.iter().map(|length| *length as u64).sum();
    let share = rates.share(total, eligible(lengths, config));
    let mut left = usize::try_from(share).unwrap_or(usize::MAX);
    let mut cut = None;
    for item in order.iter().copied() {
        let length = lengths[item];
        let head = left.min(length) / LINE * LINE;
        if length <= left {
            device.push(whole(item));
            left -= length;
        } else if length >= config.cut_from && head >= config.small && length - head >= config.small
        {
            device.push(Part { length: head, ..whole(item) });
            cut = Some(Part { item, from: head, length: length - head });
            break;
        } else {
            let under: u64 = device.iter().map(|part| part.length as u64).sum();
            let over = under + length as u64;
            if share > 0 && rates.time(over, total - over) < rates.time(under, total - under) {
                device.push(whole(item));
                break;
            }
        }
    }
    order.clear();
    order.extend(device.iter().map(|part| part.item));
    order.sort_unstable();
    let is_cpus = |item: &usize| lengths[*item] > 0 && order.binary_search(item).is_err();
    cpu.extend((0..lengths.len()).filter(is_cpus).map(whole));
    cpu.extend(cut);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// With rates by which so many bytes are the device's share.
    fn plan(lengths: &[usize], share: u64) -> Plan {
        let total: u64 = lengths.iter().map(|length| *length as u64).sum();
        let rates = Rates { floor_ns: 0, device: share, cpu: total - share };
        let mut plan = Plan::default();
        split(lengths, rates, SplitConfig::default(), &mut plan);
        plan
    }

    fn items(parts: &[Part]) -> Vec<usize> {
        parts.iter().map(|part| part.item).collect()
    }

    #[test]
    fn shares_stand_as_rates_do_up_to_what_the_device_may_have() {
        let rates = |floor_ns, device, cpu| Rates { floor_ns, device, cpu };
        assert_eq!(rates(0, 30, 10).share(1000, 1000), 750);
        assert_eq!(rates(0, 30, 10).share(1000, 500), 500);
        assert_eq!(Rates::CPU_ALONE.share(1000, 1000), 0);
        assert_eq!(Rates::fixed(101).share(1000, 1000), 1000);
        assert_eq!(rates(0, 0, 0).share(1000, 1000), 0, "nothing is known of either");
        assert_eq!(rates(u64::MAX, u64::MAX, u64::MAX).share(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn the_cpu_has_what_it_can_do_while_the_device_takes_its_floor_and_its_part_of_the_rest() {
        let giga = 1_000_000_000;
        let rates = Rates { floor_ns: 1000, device: 30 * giga, cpu: 10 * giga };
        assert_eq!(rates.share(50_000, 50_000), 30_000);
        assert_eq!(rates.share(10_000, 10_000), 0, "the CPU is done when the floor is");
        let mut plan = Plan::default();
        for (lengths, expected) in [(vec![2500; 3], 0), (vec![2500; 5], 1), (vec![2500; 9], 4)] {
            split(&lengths, rates, SplitConfig::default(), &mut plan);
            assert_eq!(plan.device.len(), expected, "{lengths:?}");
        }
    }

    #[test]
    fn the_device_has_the_largest_and_the_cpu_the_small_ones() {
        let lengths = [100, 9000, 2047, 5000, 0, 2048];
        let plan = plan(&lengths, 14_000);
        assert_eq!(items(&plan.device), [1, 3]);
        assert_eq!(items(&plan.cpu), [0, 2, 5], "and nothing that is empty");
        assert_eq!(eligible(&lengths, SplitConfig::default()), 9000 + 5000 + 2048);
    }

    #[test]
    fn a_large_item_is_cut_on_a_line_where_the_share_ends() {
        let plan = plan(&[1 << 20], 700_001);
        assert_eq!(plan.device, [Part { item: 0, from: 0, length: 699_968 }]);
        assert_eq!(plan.cpu, [Part { item: 0, from: 699_968, length: (1 << 20) - 699_968 }]);
    }

    #[test]
    fn an_item_too_small_to_cut_goes_to_who_is_done_sooner() {
        assert_eq!(items(&plan(&[8192], 4097).device), [0]);
        assert_eq!(items(&plan(&[8192], 4096).cpu), [0]);
        // 0.8 items of 2: with one the device takes 1.25 times as long as at its best, with none the CPU 1.7 times.
        assert_eq!(items(&plan(&[5000, 5000], 4000).device), [0]);
        assert_eq!(items(&plan(&[5000, 5000], 3300).cpu), [0, 1]);
        assert_eq!(items(&plan(&[64 << 10], 1000).cpu), [0], "no part is smaller than small");
    }

    proptest! {
        #[test]
        fn every_byte_is_copied_once_and_the_share_is_met_but_for_one_item(
            lengths in prop::collection::vec(prop_oneof![0_usize..5000, 0_usize..200_000], 0..130),
            percent in 0_u64..=100,
            small in 0_usize..5000,
            cut_from in 0_usize..100_000,
        ) {
            let config = SplitConfig { small, cut_from };
            let may = eligible(&lengths, config);
            let mut plan = Plan::default();
            split(&lengths, Rates::fixed(percent), config, &mut plan);
            let mut parts: Vec<Part> = plan.device.iter().chain(&plan.cpu).copied().collect();
            parts.sort_by_key(|part| (part.item, part.from));
            let mut seen = vec![0; lengths.len()];
            for part in &parts {
                prop_assert!(part.length > 0);
                prop_assert_eq!(part.from, seen[part.item]);
                seen[part.item] += part.length;
            }
            prop_assert_eq!(&seen, &lengths);
            prop_assert!(plan.device.iter().all(|part| lengths[part.item] >= small));
            let given: u64 = plan.device.iter().map(|part| part.length as u64).sum();
            let largest = lengths.iter().max().copied().unwrap_or(0) as u64;
            let total: u64 = lengths.iter().map(|length| *length as u64).sum();
            prop_assert!(given.abs_diff((total * percent / 100).min(may)) <= largest);
        }
    }
}
