//! Encoding of a frame's payload: LEB128 numbers and texts. Writing can't fail; reading trusts no input.

/// The rule that a payload violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Builds a payload.
#[derive(Debug, Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.number(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Parses a payload.
#[derive(Debug)]
pub(crate) struct In<'a>(pub(crate) &'a [u8]);

impl In<'_> {
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed("it ends in a number"))?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("a number is above 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number is above 64 bits"))
    }

    pub(crate) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number is above 32 bits"))
    }

    /// Reads a count of items of at least `bytes` bytes each; refuses a count that the remaining payload can't hold.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.0.len() / bytes.max(1) {
            return Err(Malformed("it says it holds more than it does"));
        }
        Ok(count)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.count(1)?;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        let text = core::str::from_utf8(text).map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is longer than its contents")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_and_strings_round_trip(number: u64, text: String) {
            let mut out = Out::default();
            out.number(number);
            out.text(&text);
            let mut input = In(&out.0);
            prop_assert_eq!(input.number(), Ok(number));
            prop_assert_eq!(input.text(), Ok(text));
            prop_assert_eq!(input.end(), Ok(()));
        }
    }

    #[test]
    fn a_number_above_64_bits_is_refused() {
        assert!(In(&[0xff; 11]).number().is_err());
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(In(&most).number(), Ok(u64::MAX));
        most[9] = 2;
        assert!(In(&most).number().is_err());
    }

    #[test]
    fn a_count_above_the_remaining_bytes_is_rejected_before_allocation() {
        assert!(In(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0]).count(1).is_err());
    }
}
