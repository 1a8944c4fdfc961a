//! Suggestions for misspelt names.

use strsim::osa_distance;

/// The candidate nearest to `written`, ignoring case. `None` if more than a third of the letters would have
/// to change. In dotted names (`section.key`), a last part with at most one mistake is near in any section.
#[must_use]
pub fn nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = written.chars().count();
    if length > 64 {
        // No name is so long, and the distance costs the product of both lengths.
        return None;
    }
    let written = &written.to_lowercase();
    let allowed = (length / 3).clamp(1, 4);
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase();
            let distance = osa_distance(written, &lower);
            let part = osa_distance(&last(written), &last(&lower));
            let near_part = candidate.contains('.') && part <= 1 && last(written).chars().count() >= 3;
            (distance <= allowed || near_part).then_some((
                if near_part { distance.min(part + 1) } else { distance },
                distance,
                candidate,
            ))
        })
        .min_by_key(|(rank, distance, _)| (*rank, *distance))
        .map(|(_, _, candidate)| candidate)
}

/// The end of a message that suggests a name: ", did you mean `name`?", or nothing.
#[must_use]
pub fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_keys_of_other_sections() {
        let keys = ["train.epochs", "train.batch_size", "optimiser.learning_rate"];
        assert_eq!(nearest("train.epcohs", keys), Some("train.epochs"));
        assert_eq!(nearest("train.learning_rate", keys), Some("optimiser.learning_rate"));
        assert_eq!(nearest("batch_size", keys), Some("train.batch_size"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest(&"train.epochs".repeat(10), keys), None);
        assert_eq!(nearest("x", ["f32", "bf16"]), None);
        assert_eq!(nearest("fp32", ["f32", "bf16"]), Some("f32"));
    }

    #[test]
    fn suggests_only_names_with_few_mistakes() {
        let known = ["mnist", "cifar10", "cifar100"];
        assert_eq!(nearest("mnsit", known), Some("mnist"));
        assert_eq!(nearest("MNIST", known), Some("mnist"));
        assert_eq!(nearest("cifar-10", known), Some("cifar10"));
        assert_eq!(nearest("imagenet", known), None);
        assert_eq!(nearest("", known), None);
    }
}
