//! Matching the tensors of a file with those of a network.

use std::collections::HashMap;

/// The result for each tensor of file and network. Lists are in the order of the network, then of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// In both, of one shape: these load.
    pub loaded: Vec<String>,
    /// In the network, not in the file: these keep their initial values.
    pub missing: Vec<String>,
    /// In the file, not in the network: these are left out.
    pub unexpected: Vec<String>,
    /// In both, of different shapes, as the last layer is when the number of classes differs: these keep
    /// their initial values.
    pub mismatched: Vec<Mismatch>,
}

/// A tensor of one name and two shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The name.
    pub name: String,
    /// The shape in the file.
    pub in_file: Vec<usize>,
    /// The shape in the network.
    pub wanted: Vec<usize>,
}

/// Matches tensors by name and shape. Both sides are names, such as torchvision's, with shapes.
///
/// `num_batches_tracked` is passed over on both sides: PyTorch counts batches there, and nothing is computed
/// from it.
pub fn match_tensors<'a>(
    file: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
) -> Matching {
    let counts = |name: &str| name.rsplit('.').next() != Some("num_batches_tracked");
    let file: Vec<_> = file.into_iter().filter(|(name, _)| counts(name)).collect();
    let mut left: HashMap<&str, &[usize]> = file.iter().copied().collect();
    let mut matching = Matching::default();
    for (name, shape) in wanted.into_iter().filter(|(name, _)| counts(name)) {
        match left.remove(name) {
            Some(in_file) if in_file == shape => matching.loaded.push(name.to_string()),
            Some(in_file) => matching.mismatched.push(Mismatch {
                name: name.to_string(),
                in_file: in_file.to_vec(),
                wanted: shape.to_vec(),
            }),
            None => matching.missing.push(name.to_string()),
        }
    }
    let unexpected = file.into_iter().filter(|(name, _)| left.remove(name).is_some());
    matching.unexpected = unexpected.map(|(name, _)| name.to_string()).collect();
    matching
}

impl Matching {
    /// Whether every tensor of the network loads. The file may hold more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.mismatched.is_empty()
    }

    /// A few lines to be shown: what loads, and what does not with its names.
    #[must_use]
    pub fn summary(&self) -> String {
        let wanted = self.loaded.len() + self.missing.len() + self.mismatched.len();
        let mut lines =
            vec![format!("{} of the network's {wanted} tensors load from the file", self.loaded.len())];
        let mut list = |what: &str, names: &[String]| {
            if !names.is_empty() {
                lines.push(format!("{} {what}: {}", names.len(), shortened(names)));
            }
        };
        let shapes: Vec<String> = self.mismatched.iter().map(Mismatch::describe).collect();
        list("differ in shape and keep their initial values", &shapes);
        list("are not in the file and keep their initial values", &self.missing);
        list("of the file are not in the network and are left out", &self.unexpected);
        if let (true, Some(wanted), Some(found)) =
            (self.loaded.is_empty(), self.missing.first(), self.unexpected.first())
        {
            lines.push(format!(
                "the network has {wanted} where the file has {found}: is it of another network?"
            ));
        }
        lines.join("\n")
    }
}

impl Mismatch {
    fn describe(&self) -> String {
        format!("{} ({:?} in the file, {:?} in the network)", self.name, self.in_file, self.wanted)
    }
}

/// The first names, and how many follow.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let text = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONV: &[usize] = &[64, 3, 7, 7];

    fn check(file: &[(&str, &[usize])], wanted: &[(&str, &[usize])], summary: &str) {
        assert_eq!(match_tensors(file.iter().copied(), wanted.iter().copied()).summary(), summary);
    }

    #[test]
    fn a_new_head_is_told() {
        let file: [(&str, &[usize]); 5] = [
            ("conv1.weight", CONV),
            ("bn1.num_batches_tracked", &[]),
            ("aux.fc.weight", &[2, 2]),
            ("fc.weight", &[1000, 512]),
            ("fc.bias", &[1000]),
        ];
        let wanted: [(&str, &[usize]); 4] =
            [("conv1.weight", CONV), ("fc.weight", &[10, 512]), ("fc.bias", &[10]), ("bn1.weight", &[64])];
        check(
            &file,
            &wanted,
            "1 of the network's 4 tensors load from the file\n\
             2 differ in shape and keep their initial values: fc.weight ([1000, 512] in the file, [10, 512] \
             in the network), fc.bias ([1000] in the file, [10] in the network)\n\
             1 are not in the file and keep their initial values: bn1.weight\n\
             1 of the file are not in the network and are left out: aux.fc.weight",
        );
    }

    #[test]
    fn a_file_of_another_network_is_told() {
        check(
            &[("features.0.weight", CONV)],
            &[("conv1.weight", CONV)],
            "0 of the network's 1 tensors load from the file\n\
             1 are not in the file and keep their initial values: conv1.weight\n\
             1 of the file are not in the network and are left out: features.0.weight\n\
             the network has conv1.weight where the file has features.0.weight: is it of another network?",
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..9).map(|i| format!("t{i}")).collect();
        assert_eq!(shortened(&names), "t0, t1, t2, t3, t4, t5 and 3 more");
    }

    #[test]
    fn a_whole_match_is_complete() {
        let matching = match_tensors([("a", CONV), ("b", CONV)], [("a", CONV)]);
        assert!(matching.is_complete());
        assert_eq!(matching.unexpected, ["b"]);
    }
}
