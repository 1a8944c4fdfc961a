//! The search for the state dict in a pickle.

use std::collections::HashMap;

use super::pickle::{Object, ObjectId, Objects, TensorView};
use crate::error::{Parsed, Problem};
use stratus_base::printable;

/// The keys under which training programs store a state dict.
const STATE_DICT_KEYS: [&str; 3] = ["state_dict", "model", "model_state_dict"];
const REMEDY: &str = "save a state dict: torch.save(model.state_dict(), path)";

/// The state dict of a file.
pub(super) struct StateDict<'a> {
    /// Names and tensors, in order.
    pub tensors: Vec<(String, &'a TensorView<'a>)>,
    /// The key of the state dict, if it is not the root.
    pub wrapper_key: Option<String>,
}

/// Finds the state dict: the root itself, or a dict in it.
pub(super) fn find<'a>(objects: &'a Objects<'a>) -> Parsed<StateDict<'a>> {
    let Object::Dict(root) = objects.get(objects.root) else {
        return Err(Problem::WrongKind {
            kind: format!(
                "a PyTorch file with {} instead of a state dict",
                objects.get(objects.root).describe()
            ),
            remedy: REMEDY,
        });
    };
    // A dict can be stored under many keys, so the result is cached.
    let mut seen: HashMap<ObjectId, bool> = HashMap::new();
    let mut candidates: Vec<(&str, &[(ObjectId, ObjectId)])> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (key, value) in root {
        let (Object::Text(key), Object::Dict(dict)) = (objects.get(*key), objects.get(*value)) else {
            continue;
        };
        if *seen.entry(*value).or_insert_with(|| has_tensors(objects, dict)) {
            // Like in Python, a repeated key keeps its position and takes the new value.
            match index.get(key) {
                Some(&i) => candidates[i].1 = dict,
                None => {
                    index.insert(key, candidates.len());
                    candidates.push((key, dict));
                }
            }
        }
    }
    let known: Vec<_> = candidates.iter().filter(|(key, _)| STATE_DICT_KEYS.contains(key)).collect();
    let (wrapper_key, dict): (Option<&str>, &[(ObjectId, ObjectId)]) =
        match (known.as_slice(), candidates.as_slice()) {
            ([(key, dict)], _) => (Some(key), dict),
            ([], _) if has_tensors(objects, root) => (None, root),
            ([], [(key, dict)]) => (Some(key), dict),
            ([], []) => {
                return Err(Problem::WrongKind {
                    kind: format!("a PyTorch file without a state dict (its keys: {})", keys(objects, root)),
                    remedy: REMEDY,
                });
            }
            _ => {
                let keys: Vec<String> = candidates.iter().take(8).map(|(key, _)| printable(key)).collect();
                return Err(Problem::WrongKind {
                    kind: format!("a PyTorch file with several state dicts ({})", keys.join(", ")),
                    remedy: "save only the one you need: torch.save(torch.load(path)[key], path)",
                });
            }
        };
    let mut tensors: Vec<(String, &TensorView<'_>)> = Vec::new();
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
    Ok(StateDict { tensors, wrapper_key: wrapper_key.map(str::to_string) })
}

fn has_tensors(objects: &Objects<'_>, dict: &[(ObjectId, ObjectId)]) -> bool {
    dict.iter().any(|(key, value)| {
        matches!((objects.get(*key), objects.get(*value)), (Object::Text(_), Object::Tensor(_)))
    })
}

fn keys(objects: &Objects<'_>, dict: &[(ObjectId, ObjectId)]) -> String {
    let keys = dict.iter().filter_map(|(key, _)| match objects.get(*key) {
        Object::Text(key) => Some(printable(key)),
        _ => None,
    });
    let keys: Vec<String> = keys.take(8).collect();
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}
