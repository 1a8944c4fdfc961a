//! Shrinks a network to a small one with the same problem.

use super::network::{FLAGS, Network};

/// The maximum number of smaller networks that are tried.
const MAX_TRIALS: usize = 600;

/// The smallest network found with the problem: each step drops a layer, shrinks a size, or resets an
/// attribute or a setting to its default, as long as `has_problem` is true.
pub fn shrink(network: &Network, mut has_problem: impl FnMut(&Network) -> bool) -> Network {
    let mut smallest = network.clone();
    let mut trials = 0;
    'next: loop {
        for candidate in candidates(&smallest) {
            if trials == MAX_TRIALS {
                return smallest;
            }
            if candidate == smallest || candidate.graph().is_err() {
                continue;
            }
            trials += 1;
            if has_problem(&candidate) {
                smallest = candidate;
                continue 'next;
            }
        }
        return smallest;
    }
}

/// Networks that are smaller by one step, the largest steps first.
fn candidates(network: &Network) -> Vec<Network> {
    let mut smaller = vec![without_unread_layers(network)];
    for (position, layer) in network.layers.iter().enumerate().rev() {
        smaller.extend(layer.inputs.iter().map(|input| without_layer(network, position, input)));
    }
    let mut change = |change: &dyn Fn(&mut Network)| {
        let mut candidate = network.clone();
        change(&mut candidate);
        smaller.push(candidate);
    };
    for (_, flag) in FLAGS {
        change(&|candidate| *flag(&mut candidate.settings) = false);
    }
    change(&|candidate| candidate.settings.layout = 0);
    for batch in smaller_counts(network.settings.batch) {
        change(&|candidate| candidate.settings.batch = batch);
    }
    for (position, layer) in network.layers.iter().enumerate() {
        for input in (0..layer.inputs.len()).filter(|_| layer.inputs.len() > 2) {
            change(&|candidate| _ = candidate.layers[position].inputs.remove(input));
        }
        for (attribute, (_, value)) in layer.attributes.iter().enumerate() {
            change(&|candidate| _ = candidate.layers[position].attributes.remove(attribute));
            for value in smaller_values(value) {
                change(&|candidate| candidate.layers[position].attributes[attribute].1.clone_from(&value));
            }
        }
    }
    for extent in 0..3 {
        for count in smaller_counts(network.input[extent]) {
            change(&|candidate| candidate.input[extent] = count);
        }
    }
    smaller
}

/// The network in which the readers of a layer read one of its inputs instead.
fn without_layer(network: &Network, position: usize, input: &str) -> Network {
    let mut candidate = network.clone();
    let removed = candidate.layers.remove(position);
    let names = candidate.layers.iter_mut().flat_map(|layer| &mut layer.inputs);
    for name in names.chain([&mut candidate.output]).filter(|name| **name == removed.name) {
        input.clone_into(name);
    }
    candidate
}

/// The network without layers that no output needs.
fn without_unread_layers(network: &Network) -> Network {
    let mut candidate = network.clone();
    let mut read = vec![network.output.clone()];
    for layer in network.layers.iter().rev() {
        let is_auxiliary = layer.attributes.iter().any(|(key, _)| *key == "auxiliary");
        if is_auxiliary || read.contains(&layer.name) {
            read.push(layer.name.clone());
            read.extend(layer.inputs.iter().cloned());
        }
    }
    candidate.layers.retain(|layer| read.contains(&layer.name));
    candidate
}

/// One, half, and one less.
fn smaller_counts(count: usize) -> Vec<usize> {
    let mut counts = vec![1, count / 2, count.saturating_sub(1)];
    counts.retain(|&smaller| (1..count).contains(&smaller));
    counts.dedup();
    counts
}

/// Simpler values of an attribute: a smaller number, or a pair's numbers for both.
fn smaller_values(value: &str) -> Vec<String> {
    if let Ok(count) = value.parse() {
        return smaller_counts(count).iter().map(usize::to_string).collect();
    }
    let pair = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
    let Some((first, second)) = pair.and_then(|pair| pair.split_once(", ")) else { return Vec::new() };
    let pairs = |number: &str, make: &dyn Fn(usize) -> String| -> Vec<String> {
        let counts = number.parse().map_or_else(|_| Vec::new(), smaller_counts);
        counts.into_iter().map(make).collect()
    };
    let mut values = vec![first.to_owned(), second.to_owned()];
    values.extend(pairs(first, &|first| format!("[{first}, {second}]")));
    values.extend(pairs(second, &|second| format!("[{first}, {second}]")));
    values
}

#[cfg(test)]
mod tests {
    use super::super::random_network;
    use super::*;

    /// A problem of one operation with one attribute remains, and hardly anything else.
    #[test]
    fn shrinking_keeps_only_the_problem() {
        let is_stride = |(key, value): &(&str, String)| *key == "stride" && value != "1";
        let has_problem =
            |network: &Network| network.layers.iter().any(|layer| layer.attributes.iter().any(is_stride));
        let mut shrunk = 0;
        for network in (0..40).map(random_network).filter(has_problem) {
            let small = shrink(&network, has_problem);
            assert!(small.layers.len() <= 2 && has_problem(&small), "{}", small.text());
            assert!(small.input.iter().all(|&extent| extent <= 3), "{}", small.text());
            assert_eq!((small.settings.batch, small.settings.tiles), (1, false));
            shrunk += 1;
        }
        assert!(shrunk > 3, "{shrunk}");
    }
}
