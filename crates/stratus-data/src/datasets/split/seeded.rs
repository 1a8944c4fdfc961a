//! Seeded splits: 60 % training, 20 % validation, 20 % test.

use sha2::{Digest, Sha256};
use stratus_random::{Purpose, Stream};

use super::Split;

/// The indices of a split's samples among `names`, in ascending order.
///
/// Each sample gets a random number from the seed and its name. Samples are sorted by it, and the splits are
/// consecutive ranges. So the split does not depend on the folder, the order of files or the machine, and
/// adding a few files moves few samples. The training split is rounded up: it is the last to become empty.
pub(in crate::datasets) fn seeded_split<'a>(
    seed: u64,
    split: Split,
    names: impl Iterator<Item = std::borrow::Cow<'a, str>>,
) -> Vec<u32> {
    let mut sorted: Vec<([u32; 4], u32)> = names
        .zip(0..)
        .map(|(name, index)| {
            let digest = Sha256::digest(name.as_bytes());
            let number = digest.iter().take(8).fold(0u64, |all, &byte| all << 8 | u64::from(byte));
            // 128 bits: collisions do not occur in practice; they would keep the order of `names`.
            (Stream::new(seed, Purpose::Split, number, 0).block(0), index)
        })
        .collect();
    sorted.sort_unstable();
    let end_of_fifths = |fifths: usize| (sorted.len() * fifths).div_ceil(5);
    let range = match split {
        Split::Train => 0..end_of_fifths(3),
        Split::Validation => end_of_fifths(3)..end_of_fifths(4),
        Split::Test => end_of_fifths(4)..sorted.len(),
    };
    let mut part: Vec<u32> = sorted[range].iter().map(|(_, index)| *index).collect();
    part.sort_unstable();
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("image_{number}.png")).collect()
    }

    fn part(seed: u64, split: Split, names: &[String]) -> Vec<String> {
        let part = seeded_split(seed, split, names.iter().map(|name| Cow::Borrowed(name.as_str())));
        part.into_iter().map(|index| names[index as usize].clone()).collect()
    }

    #[test]
    fn splits_60_20_20_without_overlap() {
        for count in [0, 1, 2, 3, 4, 5, 10, 701] {
            let names = names(count);
            let parts = [Split::Train, Split::Validation, Split::Test].map(|split| part(1, split, &names));
            let lengths = parts.each_ref().map(Vec::len);
            let first = (count * 3).div_ceil(5);
            assert_eq!(lengths, [first, (count * 4).div_ceil(5) - first, count / 5]);
            let mut all = parts.concat();
            all.sort_unstable();
            let mut expected = names.clone();
            expected.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn splits_depend_on_seed_and_names_only() {
        let names = names(200);
        let mut reversed = names.clone();
        reversed.reverse();
        let sorted = |mut part: Vec<String>| {
            part.sort_unstable();
            part
        };
        let train = sorted(part(3, Split::Train, &names));
        assert_eq!(sorted(part(3, Split::Train, &reversed)), train);
        assert_ne!(sorted(part(4, Split::Train, &names)), train);
        // An additional sample moves at most one other.
        let more: Vec<String> = names.iter().cloned().chain(["another.png".to_owned()]).collect();
        let with_one_more = part(3, Split::Train, &more);
        assert!(train.iter().filter(|name| !with_one_more.contains(name)).count() <= 1);
    }
}
