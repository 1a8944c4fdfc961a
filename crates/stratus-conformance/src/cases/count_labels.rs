//! The labels of a batch, counted by class: few and many, of samples and pixels, mixed samples, one class.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{CountLabels, MIXED};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [(&[usize], usize); 5] =
        [(&[2], 10), (&[700], 3), (&[5], 1), (&[2, 5, 7], 11), (&[3, 90, 70], 21)];
    let mixed = CountLabels { mixed: true };
    let samples = shapes.map(|(shape, classes)| count(shape, classes, CountLabels::default()));
    samples.into_iter().chain([count(&[64, MIXED], 7, mixed), count(&[1, MIXED], 2, mixed)]).collect()
}

fn benchmarks() -> Vec<Case> {
    vec![count(&[4, 360, 480], 11, CountLabels::default())]
}

fn count(shape: &[usize], classes: usize, kernel: CountLabels) -> Case {
    let classes_u32 = classes as u32;
    let (fill, mixed) = match kernel.mixed {
        true => (Fill::Mixed { classes: classes_u32 }, " mixed"),
        false => (Fill::Labels { classes: classes_u32 }, ""),
    };
    Case::new(format!("count_labels {} of {classes}{mixed}", extents(shape)), kernel)
        .filled("labels", shape, Class::Label, fill)
        .output("counts", &[classes], Class::Sums)
}
