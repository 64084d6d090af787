//! Which steps of a plan are kept, as text: `3,5-9`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A set of step numbers; see [`Plan::keeping`](super::Plan::keeping).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep(BTreeSet<u32>);

impl Keep {
    /// Whether a step is kept.
    pub fn has(&self, number: u32) -> bool {
        self.0.contains(&number)
    }
}

impl FromIterator<u32> for Keep {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut numbers = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::default());
        }
        let wrong = |part: &str| format!("'{part}' is no step number or range");
        let mut numbers = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let parse = |number: &str| number.parse::<u32>().map_err(|_| wrong(part));
            let (first, last) = (parse(first)?, parse(last)?);
            if first > last || last > MAX_STEP {
                return Err(wrong(part));
            }
            numbers.extend(first..=last);
        }
        Ok(Self(numbers))
    }
}

const MAX_STEP: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges() {
        let keep: Keep = [1, 2, 3, 7, 9, 10].into_iter().collect();
        assert_eq!(keep.to_string(), "1-3,7,9-10");
        assert!("5-3".parse::<Keep>().is_err() && "a".parse::<Keep>().is_err());
        assert!("0-4000000000".parse::<Keep>().is_err());
    }

    proptest! {
        #[test]
        fn text_and_back(numbers in prop::collection::vec(0..100_u32, 0..40)) {
            let keep: Keep = numbers.into_iter().collect();
            prop_assert_eq!(keep.to_string().parse::<Keep>(), Ok(keep));
        }
    }
}
