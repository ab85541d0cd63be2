//! Linked lists of slots; each slot is in at most one list.

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    /// The list it is in, from 1; 0: none.
    list: u8,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    len: usize,
}

/// `N` lists.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    links: Vec<Link>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Self {
        Self { links: Vec::new(), ends: [Ends { head: NONE, tail: NONE, len: 0 }; N] }
    }
}

impl<const N: usize> Lists<N> {
    pub(super) const fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }

    /// Slots in all lists.
    pub(super) fn total(&self) -> usize {
        self.ends.iter().map(|ends| ends.len).sum()
    }

    /// The list a slot is in.
    pub(super) fn list_of(&self, slot: u32) -> Option<usize> {
        let link = self.links.get(slot as usize)?;
        (link.list > 0).then(|| usize::from(link.list) - 1)
    }

    /// The oldest slot of a list.
    pub(super) const fn last(&self, list: usize) -> Option<u32> {
        let tail = self.ends[list].tail;
        if tail == NONE { None } else { Some(tail) }
    }

    /// The newest slot of a list.
    pub(super) const fn first(&self, list: usize) -> Option<u32> {
        let head = self.ends[list].head;
        if head == NONE { None } else { Some(head) }
    }

    /// The slot added after this one.
    pub(super) fn newer(&self, slot: u32) -> Option<u32> {
        let before = self.links.get(slot as usize)?.before;
        (before != NONE).then_some(before)
    }

    /// Removes a slot from its list.
    pub(super) fn take(&mut self, slot: u32) {
        let Some(list) = self.list_of(slot) else { return };
        let link = self.links[slot as usize];
        match link.before {
            NONE => self.ends[list].head = link.after,
            before => self.links[before as usize].after = link.after,
        }
        match link.after {
            NONE => self.ends[list].tail = link.before,
            after => self.links[after as usize].before = link.before,
        }
        self.ends[list].len -= 1;
        self.links[slot as usize].list = 0;
    }

    /// Puts a slot at the head of a list, removing it from any other.
    pub(super) fn push(&mut self, list: usize, slot: u32) {
        self.take(slot);
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link { before: NONE, after: NONE, list: 0 });
        }
        let head = self.ends[list].head;
        let list_mark = u8::try_from(list + 1).expect("there are few lists");
        self.links[slot as usize] = Link { before: NONE, after: head, list: list_mark };
        match head {
            NONE => self.ends[list].tail = slot,
            head => self.links[head as usize].before = slot,
        }
        self.ends[list].head = slot;
        self.ends[list].len += 1;
    }
}
