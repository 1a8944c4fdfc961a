//! Where in a pickle the state dict is.

use std::collections::HashMap;

use super::pickle::{Id, Object, Objects, View};
use crate::error::{Parsed, Problem};
use stratus_base::printable;

/// Keys that training programs put a state dict under.
const WRAPPERS: [&str; 3] = ["state_dict", "model", "model_state_dict"];
const REMEDY: &str = "save a state dict: torch.save(model.state_dict(), path)";

/// The state dict of a file.
pub(super) struct StateDict<'a> {
    /// Names and tensors, in order.
    pub tensors: Vec<(String, &'a View<'a>)>,
    /// The key it was found under.
    pub unwrapped: Option<String>,
}

/// Finds the state dict: the dict that the file is, or the one that is in it under a key.
pub(super) fn find<'a>(objects: &'a Objects<'a>) -> Parsed<StateDict<'a>> {
    let Object::Dict(root) = objects.get(objects.root) else {
        return Err(Problem::Kind {
            what: format!(
                "a PyTorch file with {} instead of a state dict",
                objects.get(objects.root).describe()
            ),
            remedy: REMEDY,
        });
    };
    // A dict can be under many keys: each is looked through once.
    let mut seen: HashMap<Id, bool> = HashMap::new();
    let mut candidates: Vec<(&str, &[(Id, Id)])> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (key, value) in root {
        let (Object::Text(key), Object::Dict(dict)) = (objects.get(*key), objects.get(*value)) else {
            continue;
        };
        if *seen.entry(*value).or_insert_with(|| has_tensors(objects, dict)) {
            // As in Python, a key that comes again keeps its place and takes the new value.
            match index.get(key) {
                Some(&i) => candidates[i].1 = dict,
                None => {
                    index.insert(key, candidates.len());
                    candidates.push((key, dict));
                }
            }
        }
    }
    let known: Vec<_> = candidates.iter().filter(|(key, _)| WRAPPERS.contains(key)).collect();
    let (unwrapped, dict): (Option<&str>, &[(Id, Id)]) = match (known.as_slice(), candidates.as_slice()) {
        ([(key, dict)], _) => (Some(key), dict),
        ([], _) if has_tensors(objects, root) => (None, root),
        ([], [(key, dict)]) => (Some(key), dict),
        ([], []) => {
            return Err(Problem::Kind {
                what: format!("a PyTorch file without a state dict (its keys: {})", keys(objects, root)),
                remedy: REMEDY,
            });
        }
        _ => {
            let keys: Vec<String> = candidates.iter().take(8).map(|(key, _)| printable(key)).collect();
            return Err(Problem::Kind {
                what: format!("a PyTorch file with several state dicts ({})", keys.join(", ")),
                remedy: "save only the one you need: torch.save(torch.load(path)[key], path)",
            });
        }
    };
    let mut tensors: Vec<(String, &View<'_>)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (key, value) in dict {
        let (Object::Text(name), Object::Tensor(view)) = (objects.get(*key), objects.get(*value)) else {
            continue;
        };
        match index.get(name) {
            Some(&i) => tensors[i].1 = view,
            None => {
                index.insert(name, tensors.len());
                tensors.push(((*name).to_string(), view));
            }
        }
    }
    Ok(StateDict { tensors, unwrapped: unwrapped.map(str::to_string) })
}

fn has_tensors(objects: &Objects<'_>, dict: &[(Id, Id)]) -> bool {
    dict.iter().any(|(key, value)| {
        matches!((objects.get(*key), objects.get(*value)), (Object::Text(_), Object::Tensor(_)))
    })
}

fn keys(objects: &Objects<'_>, dict: &[(Id, Id)]) -> String {
    let keys = dict.iter().filter_map(|(key, _)| match objects.get(*key) {
        Object::Text(key) => Some(printable(key)),
        _ => None,
    });
    let keys: Vec<String> = keys.take(8).collect();
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}
