//! A tiny network and images, on which the reference backend trains in an instant.

use std::fs;
use std::path::Path;

/// A network for these images with all layers that fine-tuning affects: batch norm, dropout, an auxiliary
/// classifier.
pub const NET: &str = r#"
name = "tiny"
input = [1, 12, 12]

[[layer]]
name = "stem.conv"
op = "conv2d"
out_channels = 4
kernel = 3
stride = 2

[[layer]]
name = "stem.norm"
op = "batch_norm2d"

[[layer]]
name = "stem.relu"
op = "relu"

[[layer]]
name = "aux.flatten"
op = "flatten"

[[layer]]
name = "aux.fc"
op = "linear"
out_features = 10
auxiliary = 0.3

[[layer]]
name = "body.conv"
op = "conv2d"
inputs = ["stem.relu"]
out_channels = 8
kernel = 3

[[layer]]
name = "body.norm"
op = "batch_norm2d"

[[layer]]
name = "body.relu"
op = "relu"

[[layer]]
name = "flatten"
op = "flatten"

[[layer]]
name = "dropout"
op = "dropout"
p = 0.1

[[layer]]
name = "fc"
op = "linear"
out_features = 10
"#;

/// The settings of every command: the reference backend, which times no kernels, on the tiny images.
pub const SETTINGS: &[&str] = &[
    "data.name=mnist",
    "data.path=data",
    "data.verify=false",
    "train.device=reference",
    "train.batch_size=32",
];

/// Writes images of one bright row, whose index is the label, in the format of MNIST.
pub fn write_data(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (split, count) in [("train", 160u32), ("t10k", 64)] {
        let (mut images, mut labels) = (vec![0, 0, 8, 3], vec![0, 0, 8, 1]);
        for extent in [count, 12, 12] {
            images.extend(extent.to_be_bytes());
        }
        labels.extend(count.to_be_bytes());
        for image in 0..count {
            let label = image * 7 % 10;
            labels.push(u8::try_from(label).unwrap());
            images.extend((0..144).map(|pixel| {
                let noise = (pixel * 31 + image * 17) % 60;
                u8::try_from(if pixel / 12 == label { 190 + noise } else { noise }).unwrap()
            }));
        }
        fs::write(folder.join(format!("{split}-images-idx3-ubyte")), images).unwrap();
        fs::write(folder.join(format!("{split}-labels-idx1-ubyte")), labels).unwrap();
    }
}

/// The arguments of a command with [`SETTINGS`] and further settings.
pub fn arguments<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let settings = SETTINGS.iter().chain(more).flat_map(|setting| ["--set", setting]);
    command.iter().copied().chain(settings).collect()
}

/// Copies a folder.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
