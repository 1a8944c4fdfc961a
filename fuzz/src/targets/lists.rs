//! Lists of classes, of the images of a split, and of pairs of images and masks.

use std::sync::Once;

use crate::scratch;
use stratus_data::{OpenOptions, Split, SplitMethod};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "lists",
    run,
    seeds: seeds::lists,
    dictionary: &["cat", "dog", "0.png", "cat/0.png", "./", "../", "/", "\\xef\\xbb\\xbf", "\\x0d\\x0a"],
    max_bytes: 8192,
};

fn run(data: &[u8]) {
    static FOLDERS: Once = Once::new();
    FOLDERS.call_once(|| {
        let image = seeds::small_png();
        for name in ["lists/train/cat/0.png", "lists/train/dog/0.png", "lists/train/dog/1.png"] {
            scratch::file(name, &image);
        }
        scratch::file("pairs/0.png", &image);
    });
    let list = scratch::file("list.txt", data);
    scratch::file("pairs/train.txt", data);
    let _ = stratus_data::sync::class_list(&list);
    let folder = scratch::folder();
    let lists = SplitMethod::Lists(vec![list.clone(), list.clone()]);
    let with_classes = OpenOptions { class_list: Some(list), ..OpenOptions::default() };
    let with_split = OpenOptions { split_method: lists, ..OpenOptions::default() };
    let _ = stratus_data::open("folder", &folder.join("lists"), Split::Train, &with_classes);
    let _ = stratus_data::open("folder", &folder.join("lists"), Split::Train, &with_split);
    let damaged = OpenOptions { skip_damaged: true, verify: false, ..OpenOptions::default() };
    let _ = stratus_data::open("camvid", &folder.join("pairs"), Split::Train, &damaged);
}
