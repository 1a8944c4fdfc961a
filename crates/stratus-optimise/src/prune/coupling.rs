//! Channels that can only be removed together, as sets: the rule of each kind of operation.

/// The rule by which channels of inputs and output are coupled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coupling {
    /// Channel `c` of the first `inputs` inputs and of the output.
    Equal {
        /// The number of inputs whose channels are those of the output.
        inputs: usize,
    },
    /// As [`Coupling::Equal`] with one input. Channels at the same position of each group are coupled too, so
    /// that the groups stay equally large.
    EqualWithinGroups {
        /// The number of groups.
        groups: usize,
    },
    /// The channels of the inputs one after the other.
    Concatenated,
    /// The output is a range of the input's channels.
    Sliced {
        /// The first channel.
        first: usize,
    },
    /// The channels of groups are interleaved. Channels at the same position of each group are coupled, which
    /// keeps the order of the remaining ones.
    Shuffled {
        /// The number of groups.
        groups: usize,
    },
    /// Channel `c` and its pixels, which become features.
    Flattened,
    /// None: every output channel reads every input channel.
    Dense,
    /// The input and output channels of each group, which is removed as a whole.
    WholeGroups {
        /// The number of groups.
        groups: usize,
    },
    /// The input channels at the same position of each group, and the output channels likewise. All groups
    /// stay.
    WithinGroups {
        /// The number of groups.
        groups: usize,
    },
}

impl Coupling {
    /// Unites the coupled channels of an operation.
    pub(super) fn unite(self, inputs: &[Span], output: Span, sets: &mut DisjointSets) {
        let input = inputs.first().copied().unwrap_or(output);
        match self {
            Self::Equal { inputs: count } => {
                inputs.iter().take(count).for_each(|input| sets.unite_spans(*input, output));
            }
            Self::EqualWithinGroups { groups } => {
                sets.unite_spans(input, output);
                unite_positions(output, groups, sets);
            }
            Self::Concatenated => {
                let mut first = 0;
                for input in inputs {
                    sets.unite_spans(*input, output.part(first, input.length));
                    first += input.length;
                }
            }
            Self::Sliced { first } => sets.unite_spans(input.part(first, output.length), output),
            Self::Shuffled { groups } => {
                let size = input.length / groups.max(1);
                for (group, position) in pairs(groups, size) {
                    let [from, to] = [group * size + position, position * groups + group];
                    sets.unite(input.at(from), output.at(to));
                }
                unite_positions(input, groups, sets);
            }
            Self::Flattened => {
                let pixels = output.length / input.length.max(1);
                for (channel, pixel) in pairs(input.length, pixels) {
                    sets.unite(input.at(channel), output.at(channel * pixels + pixel));
                }
            }
            Self::Dense => {}
            Self::WholeGroups { groups } => {
                let [read, written] = [input.length, output.length].map(|length| length / groups.max(1));
                for group in 0..groups {
                    let first = input.at(group * read);
                    (1..read).for_each(|position| sets.unite(first, input.at(group * read + position)));
                    (0..written)
                        .for_each(|position| sets.unite(first, output.at(group * written + position)));
                }
            }
            Self::WithinGroups { groups } => {
                unite_positions(input, groups, sets);
                unite_positions(output, groups, sets);
            }
        }
    }

    /// The positions within a group of the channels that remain of it, for a tensor of `channels` channels of
    /// which `kept` remain, in ascending order. They are the second axis of a weight.
    pub(super) fn kept_of_group(self, channels: usize, kept: &[usize]) -> Vec<usize> {
        match self {
            Self::WholeGroups { groups } => (0..channels / groups.max(1)).collect(),
            Self::WithinGroups { groups } => {
                let size = channels / groups.max(1);
                kept.iter().copied().take_while(|&channel| channel < size).collect()
            }
            _ => kept.to_vec(),
        }
    }

    /// The number of groups of a weight.
    pub(super) fn groups(self) -> usize {
        match self {
            Self::WholeGroups { groups } | Self::WithinGroups { groups } => groups.max(1),
            _ => 1,
        }
    }
}

fn pairs(first: usize, second: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..first).flat_map(move |one| (0..second).map(move |other| (one, other)))
}

/// Unites the channels at the same position of each group.
fn unite_positions(span: Span, groups: usize, sets: &mut DisjointSets) {
    let size = span.length / groups.max(1);
    for (group, position) in pairs(groups, size) {
        sets.unite(span.at(position), span.at(group * size + position));
    }
}

/// The elements of a tensor's channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The element of channel 0.
    pub start: usize,
    /// The number of channels.
    pub length: usize,
}

impl Span {
    fn at(self, channel: usize) -> usize {
        self.start + channel
    }

    fn part(self, first: usize, length: usize) -> Self {
        Self { start: self.start + first, length }
    }
}

/// Disjoint sets of elements (Galler, Fischer: "An improved equivalence algorithm", 1964). The representative
/// of a set is its smallest element.
#[derive(Debug)]
pub(super) struct DisjointSets {
    parents: Vec<u32>,
}

impl DisjointSets {
    /// Sets of one element each, at most [`super::groups::MAX_CHANNELS`].
    pub(super) fn new(elements: usize) -> Self {
        Self { parents: (0..elements as u32).collect() }
    }

    /// The smallest element of the set of `element`.
    pub(super) fn representative(&mut self, element: usize) -> usize {
        let mut at = element as u32;
        while self.parents[at as usize] != at {
            let parent = self.parents[at as usize];
            self.parents[at as usize] = self.parents[parent as usize];
            at = parent;
        }
        at as usize
    }

    /// Makes one set of the sets of two elements.
    pub(super) fn unite(&mut self, one: usize, other: usize) {
        let [one, other] = [self.representative(one), self.representative(other)];
        self.parents[one.max(other)] = one.min(other) as u32;
    }

    fn unite_spans(&mut self, one: Span, other: Span) {
        (0..one.length.min(other.length)).for_each(|channel| self.unite(one.at(channel), other.at(channel)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sets of two or more elements of an operation whose inputs have these channels, with elements of
    /// the inputs first and those of the output last.
    fn sets(coupling: Coupling, inputs: &[usize], output: usize) -> Vec<Vec<usize>> {
        let mut start = 0;
        let mut span = |length| {
            start += length;
            Span { start: start - length, length }
        };
        let inputs: Vec<Span> = inputs.iter().map(|&length| span(length)).collect();
        let output = span(output);
        let count = output.start + output.length;
        let mut sets = DisjointSets::new(count);
        coupling.unite(&inputs, output, &mut sets);
        let mut members = vec![Vec::new(); count];
        (0..count).for_each(|element| members[sets.representative(element)].push(element));
        members.retain(|members| members.len() > 1);
        members
    }

    #[test]
    fn channels_are_coupled_by_the_kind_of_operation() {
        assert_eq!(sets(Coupling::Equal { inputs: 2 }, &[2, 2], 2), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(sets(Coupling::Equal { inputs: 1 }, &[2, 3], 2), [[0, 5], [1, 6]]);
        assert_eq!(sets(Coupling::EqualWithinGroups { groups: 2 }, &[4], 4), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(sets(Coupling::Concatenated, &[1, 2], 3), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(sets(Coupling::Sliced { first: 2 }, &[4], 2), [[2, 4], [3, 5]]);
        assert_eq!(sets(Coupling::Flattened, &[2], 6), [[0, 2, 3, 4], [1, 5, 6, 7]]);
        assert!(sets(Coupling::Dense, &[3], 3).is_empty());
    }

    /// Six channels in two groups, (0 1 2) (3 4 5), become 0 3 1 4 2 5.
    #[test]
    fn shuffled_channels_stay_in_order() {
        let expected = [[0, 3, 6, 7], [1, 4, 8, 9], [2, 5, 10, 11]];
        assert_eq!(sets(Coupling::Shuffled { groups: 2 }, &[6], 6), expected);
    }

    #[test]
    fn groups_are_removed_as_a_whole_or_stay_equally_large() {
        let whole = Coupling::WholeGroups { groups: 2 };
        assert_eq!(sets(whole, &[2], 4), [[0, 2, 3], [1, 4, 5]]);
        assert_eq!(sets(whole, &[4], 2), [[0, 1, 4], [2, 3, 5]]);
        let within = Coupling::WithinGroups { groups: 2 };
        assert_eq!(sets(within, &[4], 6), [[0, 2], [1, 3], [4, 7], [5, 8], [6, 9]]);
        assert_eq!(whole.kept_of_group(4, &[2, 3]), [0, 1]);
        assert_eq!(within.kept_of_group(6, &[0, 2, 3, 5]), [0, 2]);
        assert_eq!(Coupling::Dense.kept_of_group(6, &[1, 4]), [1, 4]);
    }
}
