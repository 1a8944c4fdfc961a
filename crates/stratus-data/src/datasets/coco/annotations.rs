//! Reading `instances_<split>.json`: as a stream, so that a file of half a gigabyte needs memory for its
//! outlines alone, and those compactly, or for nothing but areas.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use sha2::{Digest, Sha256};

use super::scalar::Scalar;
use super::shapes;
use crate::datasets::{IGNORED, IGNORED_PIXEL, files};
use crate::decode::{LARGEST_IMAGE, LONGEST_SIDE};
use crate::error::DataError;

/// The most bytes of a file of annotations.
const LARGEST_FILE: u64 = 8 << 30;
/// The most corners of a polygon.
const MOST_CORNERS: usize = 1 << 17;
/// The most categories: a mask's byte holds them, the background and [`IGNORED_PIXEL`].
const MOST_CATEGORIES: usize = 254;
/// The largest area, in pixels; that of a label is a whole number of [`AREA_UNITS`] of a pixel.
const LARGEST_AREA: f64 = 1e12;
const AREA_UNITS: f64 = 1024.0;

/// What the annotations of an image are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A class for every pixel.
    Mask,
    /// One class for the image.
    Label,
}

/// An image of the data set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image {
    id: u64,
    /// The path below the split's folder.
    pub name: Box<str>,
    /// Height and width.
    pub size: [u32; 2],
}

/// What a file of annotations says. Samples are its images by their ids.
#[derive(Debug)]
pub(super) struct Annotations {
    pub images: Vec<Image>,
    /// The categories' names by their ids.
    pub categories: Vec<String>,
    pub content: Content,
}

/// What the images' annotations were made.
#[derive(Debug)]
pub(super) enum Content {
    /// Masks in which the categories' classes are 1, 2, ….
    Masks(Outlines),
    /// The class of each image, the category's number from 0, or [`IGNORED`].
    Labels(Vec<u32>),
}

/// What masks are painted of.
#[derive(Debug)]
pub(super) struct Outlines {
    /// The first region of each image, and the number of regions.
    firsts: Vec<u32>,
    /// Of each region the class, and where its shape begins; of an image in the order in which they are
    /// painted.
    classes: Vec<u8>,
    places: Vec<u32>,
    shapes: Vec<u8>,
}

impl Annotations {
    /// Reads a file.
    pub(super) fn read(path: &Path, target: Target) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        let damaged = |problem| DataError::Damaged { path: path.to_owned(), problem };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        if bytes > LARGEST_FILE {
            return Err(damaged(format!("has {bytes} bytes, more than {LARGEST_FILE}")));
        }
        // What a file that grows meanwhile has more is not read.
        Self::parse(BufReader::with_capacity(1 << 20, file.take(bytes)), target).map_err(damaged)
    }

    fn parse(mut json: impl BufRead, target: Target) -> Result<Self, String> {
        // A mark at the beginning says how the text is coded, and is no part of it.
        match json.fill_buf().map_err(|error| error.to_string())? {
            [0xef, 0xbb, 0xbf, ..] => json.consume(3),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                return Err("is text in UTF-16; JSON is UTF-8: save it as that".to_owned());
            }
            _ => {}
        }
        let mut stored = Stored::new(target);
        let mut json = serde_json::Deserializer::from_reader(json);
        let parsed = (&mut stored).deserialize(&mut json).and_then(|()| json.end());
        parsed.map_err(|error| format!("not a file of COCO annotations: {error}"))?;
        stored.into_annotations()
    }

    /// Hashes ids and sizes of the images, and their outlines. Labels are [`Dataset::label`]'s.
    ///
    /// [`Dataset::label`]: crate::Dataset::label
    pub(super) fn hash(&self, hash: &mut Sha256) {
        for Image { id, size: [height, width], .. } in &self.images {
            hash.update(id.to_le_bytes());
            hash.update([height.to_le_bytes(), width.to_le_bytes()].as_flattened());
        }
        if let Content::Masks(Outlines { firsts, classes, places, shapes }) = &self.content {
            firsts.iter().chain(places).for_each(|number| hash.update(number.to_le_bytes()));
            hash.update(classes);
            hash.update(shapes);
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        let images: usize = self.images.iter().map(|image| size_of::<Image>() + image.name.len()).sum();
        let categories: usize =
            self.categories.iter().map(|name| size_of::<String>() + name.capacity()).sum();
        let content = match &self.content {
            Content::Masks(Outlines { firsts, classes, places, shapes }) => {
                4 * (firsts.capacity() + places.capacity()) + classes.capacity() + shapes.capacity()
            }
            Content::Labels(labels) => 4 * labels.capacity(),
        };
        (images + categories + content) as u64
    }
}

impl Outlines {
    /// The classes and shapes of an image's regions, in the order in which they are painted.
    pub(super) fn regions(&self, image: usize) -> impl Iterator<Item = (u8, &[u8])> {
        let range = self.firsts[image] as usize..self.firsts[image + 1] as usize;
        let places = self.places[range.clone()].iter();
        self.classes[range].iter().zip(places).map(|(class, at)| (*class, &self.shapes[*at as usize..]))
    }
}

/// What stands in the file, in its order.
struct Stored {
    target: Target,
    images: Vec<Image>,
    categories: Vec<StoredCategory>,
    regions: Vec<StoredRegion>,
    shapes: Vec<u8>,
}

struct StoredCategory {
    id: u64,
    name: String,
}

/// A category as it stands in the file.
#[derive(Deserialize)]
struct WrittenCategory {
    #[serde(default)]
    id: Scalar,
    name: String,
}

#[derive(Deserialize)]
struct StoredImage {
    #[serde(default)]
    id: Scalar,
    file_name: String,
    #[serde(default)]
    height: Scalar,
    #[serde(default)]
    width: Scalar,
}

#[derive(Deserialize)]
struct StoredAnnotation {
    #[serde(default)]
    id: Scalar,
    #[serde(default)]
    image_id: Scalar,
    #[serde(default)]
    category_id: Scalar,
    #[serde(default)]
    iscrowd: Scalar,
    segmentation: Option<Segmentation>,
}

/// An annotation of which the outline does not matter.
#[derive(Deserialize)]
struct StoredArea {
    #[serde(default)]
    id: Scalar,
    #[serde(default)]
    image_id: Scalar,
    #[serde(default)]
    category_id: Scalar,
    #[serde(default)]
    iscrowd: Scalar,
    #[serde(default)]
    area: Scalar,
}

/// An annotation's own number; 0 where it has none.
fn id_of(id: &Scalar) -> Result<u64, String> {
    if *id == Scalar::Missing { Ok(0) } else { id.whole("id") }
}

/// The path of an image below its folder, as programs write it: from the folder itself on, or with the
/// separators of Windows.
fn path_of(file_name: &str) -> Result<String, String> {
    let path = file_name.replace('\\', "/");
    let path = path.trim_start_matches("./");
    if path.starts_with('/') || path.as_bytes().get(1) == Some(&b':') {
        return Err(format!("`{file_name}` is a path of one machine; name it from the images' folder on"));
    }
    if !files::is_below(path) {
        return Err(format!("`{file_name}` leads out of the data set's folder"));
    }
    Ok(path.to_owned())
}

/// An annotation whose shape has been put away.
struct StoredRegion {
    image: u64,
    category: u64,
    id: u64,
    /// Its area: of an outline twice that in square units, for a label in [`AREA_UNITS`] of a pixel.
    area: u64,
    /// Where its outline begins.
    place: u32,
    crowd: bool,
}

impl Stored {
    fn new(target: Target) -> Self {
        Self { target, images: Vec::new(), categories: Vec::new(), regions: Vec::new(), shapes: Vec::new() }
    }

    fn add_image(&mut self, image: StoredImage) -> Result<(), String> {
        let StoredImage { id, file_name, height, width } = image;
        let id = id.whole("id")?;
        let wrong = |problem: String| format!("image {id}: {problem}");
        let (height, width) = (height.whole("height").map_err(wrong)?, width.whole("width").map_err(wrong)?);
        let longest = LONGEST_SIDE as u64;
        if height.max(width) > longest || !(1..=LARGEST_IMAGE as u64).contains(&(height * width)) {
            return Err(format!("image {id} is {height}×{width}"));
        }
        let name = path_of(&file_name).map_err(wrong)?;
        self.images.push(Image { id, name: name.into(), size: [height as u32, width as u32] });
        Ok(())
    }

    fn add_category(&mut self, category: WrittenCategory) -> Result<(), String> {
        let WrittenCategory { id, name } = category;
        let id = id.whole("id").map_err(|problem| format!("category `{name}`: {problem}"))?;
        self.categories.push(StoredCategory { id, name });
        Ok(())
    }

    fn add_annotation(&mut self, annotation: StoredAnnotation) -> Result<(), String> {
        let StoredAnnotation { id, image_id, category_id, iscrowd, segmentation } = annotation;
        let id = id_of(&id)?;
        let wrong = |problem: String| format!("annotation {id}: {problem}");
        let crowd = iscrowd.flag("iscrowd").map_err(wrong)?;
        let image = image_id.whole("image_id").map_err(wrong)?;
        let category = category_id.whole("category_id").map_err(wrong)?;
        let place =
            u32::try_from(self.shapes.len()).map_err(|_| wrong("more outlines than can be held".into()))?;
        let area = match segmentation {
            Some(Segmentation::Polygons(polygons)) if !polygons.is_empty() => {
                shapes::push_polygons(&mut self.shapes, &polygons)
            }
            Some(Segmentation::Runs { size, runs }) => {
                shapes::push_runs(&mut self.shapes, size, &runs).map_err(wrong)?
            }
            _ => return Err(wrong("no segmentation; a mask cannot be made of a box".to_owned())),
        };
        self.regions.push(StoredRegion { image, category, id, area, place, crowd });
        Ok(())
    }

    fn add_area(&mut self, annotation: &StoredArea) -> Result<(), String> {
        let StoredArea { id, image_id, category_id, iscrowd, area } = annotation;
        let id = id_of(id)?;
        let wrong = |problem: String| format!("annotation {id}: {problem}");
        let crowd = iscrowd.flag("iscrowd").map_err(wrong)?;
        let image = image_id.whole("image_id").map_err(wrong)?;
        let category = category_id.whole("category_id").map_err(wrong)?;
        let area = area.number("area").map_err(wrong)?;
        let area = area.ok_or_else(|| wrong("no area, by which images get their class".to_owned()))?;
        if !(0.0..=LARGEST_AREA).contains(&area) {
            return Err(wrong(format!("its area is {area}")));
        }
        let area = (area * AREA_UNITS).round() as u64;
        self.regions.push(StoredRegion { image, category, id, area, place: 0, crowd });
        Ok(())
    }

    fn into_annotations(self) -> Result<Annotations, String> {
        let Self { target, mut images, mut categories, regions, shapes } = self;
        images.sort_unstable_by_key(|image| image.id);
        if let Some(twice) = images.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(format!("image {} is there twice", twice[0].id));
        }
        categories.sort_unstable_by_key(|category| category.id);
        if let Some(twice) = categories.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(format!("category {} is there twice", twice[0].id));
        }
        if target == Target::Mask && categories.len() > MOST_CATEGORIES {
            return Err(format!("{} categories; {MOST_CATEGORIES} are possible", categories.len()));
        }
        if images.is_empty() || categories.is_empty() {
            return Err("holds no images or no categories".to_owned());
        }
        if u32::try_from(images.len().max(categories.len()).max(regions.len())).is_err() {
            return Err(format!("more than {} images, categories or annotations", u32::MAX));
        }
        let content = match target {
            Target::Mask => Content::Masks(outlines(&images, &categories, regions, shapes)?),
            Target::Label => Content::Labels(labels(&images, &categories, &regions)?),
        };
        let categories = categories.into_iter().map(|category| category.name).collect();
        Ok(Annotations { images, categories, content })
    }
}

impl StoredRegion {
    fn wrong(&self, problem: &str) -> String {
        format!("annotation {}: {problem}", self.id)
    }

    /// The numbers of its image and its category, which are sorted by their ids.
    fn locate(&self, images: &[Image], categories: &[StoredCategory]) -> Result<(usize, usize), String> {
        let Self { image, category, .. } = self;
        let at = images
            .binary_search_by_key(image, |image| image.id)
            .map_err(|_| self.wrong(&format!("there is no image {image}")))?;
        let class = categories
            .binary_search_by_key(category, |category| category.id)
            .map_err(|_| self.wrong(&format!("there is no category {category}")))?;
        Ok((at, class))
    }
}

/// The outlines of all images, in the order in which they are painted.
fn outlines(
    images: &[Image],
    categories: &[StoredCategory],
    mut regions: Vec<StoredRegion>,
    mut shapes: Vec<u8>,
) -> Result<Outlines, String> {
    // Crowds first, so that what is marked by itself is painted over them; then the largest first.
    regions.sort_unstable_by_key(|region| {
        (region.image, !region.crowd, std::cmp::Reverse(region.area), region.id, region.place)
    });
    let mut firsts = vec![0; images.len() + 1];
    let (mut classes, mut places) = (Vec::with_capacity(regions.len()), Vec::with_capacity(regions.len()));
    for region in &regions {
        let (at, class) = region.locate(images, categories)?;
        let size = images[at].size.map(u64::from);
        if let Some([height, width]) = shapes::size_of(&shapes[region.place as usize..])
            && [height, width] != size
        {
            return Err(region.wrong(&format!(
                "its run lengths are for {height}×{width}, but image {} is {}×{}",
                region.image, size[0], size[1]
            )));
        }
        firsts[at + 1] += 1;
        classes.push(if region.crowd { IGNORED_PIXEL } else { class as u8 + 1 });
        places.push(region.place);
    }
    for image in 0..images.len() {
        firsts[image + 1] += firsts[image];
    }
    shapes.shrink_to_fit();
    Ok(Outlines { firsts, classes, places, shapes })
}

/// The class of each image: the category that covers most of it, of two that cover as much the first.
fn labels(
    images: &[Image],
    categories: &[StoredCategory],
    regions: &[StoredRegion],
) -> Result<Vec<u32>, String> {
    let mut areas = Vec::with_capacity(regions.len());
    for region in regions {
        let (image, class) = region.locate(images, categories)?;
        if !region.crowd {
            areas.push((image, class, region.area));
        }
    }
    areas.sort_unstable();
    let mut labels = vec![IGNORED; images.len()];
    for of_image in areas.chunk_by(|a, b| a.0 == b.0) {
        let mut most = None;
        for of_class in of_image.chunk_by(|a, b| a.1 == b.1) {
            let area = of_class.iter().fold(0u64, |sum, (_, _, area)| sum.saturating_add(*area));
            if most.is_none_or(|most| area > most) {
                let (image, class, _) = of_class[0];
                (most, labels[image]) = (Some(area), class as u32);
            }
        }
    }
    Ok(labels)
}

/// The document: an object, of which three lists matter.
impl<'de> DeserializeSeed<'de> for &mut Stored {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Stored {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with images, annotations and categories")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "images" => map.next_value_seed(Each::new(&key, |image| self.add_image(image)))?,
                "annotations" => match self.target {
                    Target::Mask => map.next_value_seed(Each::new(&key, |one| self.add_annotation(one)))?,
                    Target::Label => map.next_value_seed(Each::new(&key, |one| self.add_area(&one)))?,
                },
                "categories" => map.next_value_seed(Each::new(&key, |one| self.add_category(one)))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A list whose elements are taken one by one, and not kept.
struct Each<'a, T, F> {
    /// What the list is called.
    list: &'a str,
    take: F,
    element: PhantomData<T>,
}

impl<'a, T, F: FnMut(T) -> Result<(), String>> Each<'a, T, F> {
    fn new(list: &'a str, take: F) -> Self {
        Self { list, take, element: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'de> for Each<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> Visitor<'de> for Each<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        for number in 1u64.. {
            // What a reader of the file looks for: which of the list, and at which line and column.
            let within = |problem: &dyn fmt::Display| {
                A::Error::custom(format_args!("number {number} of its {}: {problem}", self.list))
            };
            let Some(element) = list.next_element().map_err(|error| within(&error))? else { break };
            (self.take)(element).map_err(|problem| within(&problem))?;
        }
        Ok(())
    }
}

/// Where an object is: polygons of x, y, x, y, …, or run lengths.
enum Segmentation {
    /// Corners in units.
    Polygons(Vec<Vec<[i64; 2]>>),
    /// Height and width, and the runs down the columns.
    Runs { size: [u64; 2], runs: Vec<u64> },
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Segmentation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of polygons, or an object of run lengths")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Segmentation, A::Error> {
                let mut polygons = Vec::new();
                while let Some(coordinates) = list.next_element::<Vec<f64>>()? {
                    polygons.push(corners(&coordinates).map_err(A::Error::custom)?);
                }
                Ok(Segmentation::Polygons(polygons))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Segmentation, A::Error> {
                let (mut size, mut counts) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "size" => size = Some(map.next_value()?),
                        "counts" => counts = Some(map.next_value::<Counts>()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let size = size.ok_or_else(|| A::Error::missing_field("size"))?;
                let Counts(runs) = counts.ok_or_else(|| A::Error::missing_field("counts"))?;
                Ok(Segmentation::Runs { size, runs })
            }
        }

        json.deserialize_any(Either)
    }
}

fn corners(coordinates: &[f64]) -> Result<Vec<[i64; 2]>, String> {
    let (pairs, rest) = coordinates.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("a polygon of {} numbers, but each corner has two", coordinates.len()));
    }
    if pairs.len() > MOST_CORNERS {
        return Err(format!("a polygon of {} corners, more than {MOST_CORNERS}", pairs.len()));
    }
    let corner = |[x, y]: &[f64; 2]| match (shapes::units(*x), shapes::units(*y)) {
        (Some(x), Some(y)) => Ok([x, y]),
        _ => Err(format!("a polygon's corner at ({x}, {y}), too far away")),
    };
    pairs.iter().map(corner).collect()
}

/// Run lengths, as numbers or as COCO's short text.
struct Counts(Vec<u64>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of run lengths, or their short text")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counts, A::Error> {
                let mut runs = Vec::new();
                while let Some(run) = list.next_element()? {
                    runs.push(run);
                }
                Ok(Counts(runs))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Counts, E> {
                shapes::runs_of_text(text)
                    .map(Counts)
                    .ok_or_else(|| E::custom("its run lengths are no such text"))
            }
        }

        json.deserialize_any(Either)
    }
}
