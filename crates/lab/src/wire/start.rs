//! The start message, encoded as bytes: paths, arguments and variables need not be text.
//!
//! Form: cwd, terminal flag (0 or 1) with u16 rows and u16 columns, u32 number of arguments and the arguments, u32 number of
//! variables and name and value of each. A byte string is its u32 length and its bytes. All little endian.

use std::collections::BTreeMap;

/// The command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The command and its arguments.
    pub(crate) argv: Vec<Vec<u8>>,
    /// Its complete environment.
    pub(crate) env: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its working directory.
    pub(crate) cwd: Vec<u8>,
    /// A terminal of this size (rows, columns) for the command, instead of three pipes.
    pub(crate) terminal: Option<(u16, u16)>,
}

impl Start {
    /// As bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, &self.cwd);
        let (rows, columns) = self.terminal.unwrap_or_default();
        out.push(u8::from(self.terminal.is_some()));
        out.extend(rows.to_le_bytes());
        out.extend(columns.to_le_bytes());
        put_count(&mut out, self.argv.len());
        self.argv.iter().for_each(|word| put_bytes(&mut out, word));
        put_count(&mut out, self.env.len());
        for (name, value) in &self.env {
            put_bytes(&mut out, name);
            put_bytes(&mut out, value);
        }
        out
    }

    /// Decodes bytes; `None` if they are malformed, or if something follows.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let cwd = take_bytes(from)?;
        let [has, a, b, c, d] = *take(from, 5)? else { return None };
        let size = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let terminal = match has {
            0 => None,
            1 => Some(size),
            _ => return None,
        };
        let argv = (0..take_count(from)?).map(|_| take_bytes(from)).collect::<Option<_>>()?;
        let env = (0..take_count(from)?)
            .map(|_| Some((take_bytes(from)?, take_bytes(from)?)))
            .collect::<Option<_>>()?;
        from.is_empty().then_some(Self { argv, env, cwd, terminal })
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend(bytes);
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(head)
}

fn take_count(from: &mut &[u8]) -> Option<u32> {
    take(from, 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn take_bytes(from: &mut &[u8]) -> Option<Vec<u8>> {
    let count = usize::try_from(take_count(from)?).ok()?;
    take(from, count).map(<[u8]>::to_vec)
}
