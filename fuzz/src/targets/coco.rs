//! Annotations of COCO, as masks, as classes and as labels.

use crate::scratch;
use stratus_data::{OpenOptions, Split};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "coco",
    run,
    seeds: seeds::coco,
    dictionary: &[
        "\"images\"",
        "\"annotations\"",
        "\"categories\"",
        "\"segmentation\"",
        "\"counts\"",
        "\"size\"",
        "\"image_id\"",
        "\"category_id\"",
        "\"iscrowd\"",
        "\"bbox\"",
        "\"area\"",
        "\"file_name\"",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    scratch::file("coco/annotations/instances_val2017.json", data);
    let root = scratch::folder().join("coco");
    let _ = std::fs::create_dir_all(root.join("val2017"));
    for name in ["coco", "coco_labels", "coco_multilabel"] {
        let _ = stratus_data::open(name, &root, Split::Validation, &OpenOptions::default());
    }
}
