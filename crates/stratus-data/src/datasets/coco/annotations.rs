//! Reads `instances_<split>.json` as a stream: a file of half a gigabyte takes memory only for its outlines
//! in compact form, or for areas.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use sha2::{Digest, Sha256};

use super::image_labels::{image_classes, image_labels};
use super::scalar::Scalar;
use super::shapes;
use crate::dataset::IGNORED_PIXEL;
use crate::datasets::files;
use crate::datasets::target_rows::TargetRows;
use crate::decode::{MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS};
use crate::error::DataError;

/// The maximum length of a message of the JSON parser, in characters.
const MAX_MESSAGE_CHARS: usize = 300;
/// The maximum size of an annotation file.
const MAX_ANNOTATION_FILE_BYTES: u64 = 8 << 30;
/// The maximum number of corners of a polygon.
const MAX_POLYGON_CORNERS: usize = 1 << 17;
/// The maximum number of categories: a mask byte also encodes the background and [`IGNORED_PIXEL`].
const MAX_CATEGORIES: usize = 254;
/// The maximum area of an annotation.
const MAX_AREA_PIXELS: f64 = 1e12;
/// The number of units per pixel in which areas are stored for [`AnnotationUse::Class`].
const AREA_UNITS_PER_PIXEL: f64 = 1024.0;

/// The result of the conversion of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationUse {
    /// A class for every pixel.
    Mask,
    /// One class for the image.
    Class,
    /// All categories in the image.
    Labels,
}

/// An image of the data set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image {
    id: u64,
    /// The path below the split's image folder.
    pub name: Box<str>,
    /// Height and width.
    pub size: [u32; 2],
}

/// The content of an annotation file. Samples are its images, sorted by id.
#[derive(Debug)]
pub(super) struct Annotations {
    pub images: Vec<Image>,
    /// The names of the categories, sorted by id.
    pub categories: Vec<String>,
    pub targets: Targets,
}

/// The targets of all images.
#[derive(Debug)]
pub(super) enum Targets {
    /// Masks in which the categories are the classes 1, 2, ….
    Masks(MaskRegions),
    /// The class of each image, which is the index of its category, or [`IGNORED`](crate::dataset::IGNORED).
    Classes(Vec<u32>),
    /// A label of each category.
    Labels(TargetRows),
}

/// The regions of all masks.
#[derive(Debug)]
pub(super) struct MaskRegions {
    /// The first region of each image, followed by the number of regions.
    starts: Vec<u32>,
    /// The class of each region, in painting order within an image.
    classes: Vec<u8>,
    /// The offset of each region's shape in `shapes`.
    offsets: Vec<u32>,
    shapes: Vec<u8>,
}

impl Annotations {
    /// Reads a file.
    pub(super) fn read(path: &Path, target: AnnotationUse) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        let damaged = |problem| DataError::Invalid { path: path.to_owned(), problem };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        if bytes > MAX_ANNOTATION_FILE_BYTES {
            return Err(damaged(format!("has {bytes} bytes, more than {MAX_ANNOTATION_FILE_BYTES}")));
        }
        // Bytes appended while reading are ignored.
        Self::parse(BufReader::with_capacity(1 << 20, file.take(bytes)), target).map_err(damaged)
    }

    fn parse(mut json: impl BufRead, target: AnnotationUse) -> Result<Self, String> {
        // A byte order mark is not part of the text.
        match json.fill_buf().map_err(|error| error.to_string())? {
            [0xef, 0xbb, 0xbf, ..] => json.consume(3),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                return Err("file is UTF-16; convert it to UTF-8".to_owned());
            }
            _ => {}
        }
        let mut builder = AnnotationsBuilder::new(target);
        let mut json = serde_json::Deserializer::from_reader(json);
        let parsed = (&mut builder).deserialize(&mut json).and_then(|()| json.end());
        parsed.map_err(|error| format!("not a COCO annotation file: {}", shortened(&error)))?;
        builder.into_annotations()
    }

    /// Hashes ids and sizes of the images, and their outlines. Labels are hashed from [`Dataset::label`]
    /// and [`Dataset::targets`].
    ///
    /// [`Dataset::label`]: crate::Dataset::label
    /// [`Dataset::targets`]: crate::Dataset::targets
    pub(super) fn hash(&self, hash: &mut Sha256) {
        for Image { id, size: [height, width], .. } in &self.images {
            hash.update(id.to_le_bytes());
            hash.update([height.to_le_bytes(), width.to_le_bytes()].as_flattened());
        }
        if let Targets::Masks(MaskRegions { starts, classes, offsets, shapes }) = &self.targets {
            starts.iter().chain(offsets).for_each(|number| hash.update(number.to_le_bytes()));
            hash.update(classes);
            hash.update(shapes);
        }
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let images: usize = self.images.iter().map(|image| size_of::<Image>() + image.name.len()).sum();
        let categories: usize =
            self.categories.iter().map(|name| size_of::<String>() + name.capacity()).sum();
        let targets = match &self.targets {
            Targets::Masks(MaskRegions { starts, classes, offsets, shapes }) => {
                4 * (starts.capacity() + offsets.capacity()) + classes.capacity() + shapes.capacity()
            }
            Targets::Classes(labels) => 4 * labels.capacity(),
            Targets::Labels(rows) => rows.memory_bytes() as usize,
        };
        (images + categories + targets) as u64
    }
}

impl MaskRegions {
    /// The classes and shapes of an image's regions, in painting order.
    pub(super) fn of_image(&self, image: usize) -> impl Iterator<Item = (u8, &[u8])> {
        let range = self.starts[image] as usize..self.starts[image + 1] as usize;
        let offsets = self.offsets[range.clone()].iter();
        self.classes[range].iter().zip(offsets).map(|(class, at)| (*class, &self.shapes[*at as usize..]))
    }
}

/// Collects the content of the file, in its order.
struct AnnotationsBuilder {
    target: AnnotationUse,
    images: Vec<Image>,
    categories: Vec<Category>,
    regions: Vec<ParsedRegion>,
    shapes: Vec<u8>,
}

pub(super) struct Category {
    id: u64,
    name: String,
}

/// A category in the file.
#[derive(Deserialize)]
struct CategoryJson {
    #[serde(default)]
    id: Scalar,
    name: String,
}

#[derive(Deserialize)]
struct ImageJson {
    #[serde(default)]
    id: Scalar,
    file_name: String,
    #[serde(default)]
    height: Scalar,
    #[serde(default)]
    width: Scalar,
}

#[derive(Deserialize)]
struct AnnotationJson {
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

/// An annotation, without its outline.
#[derive(Deserialize)]
struct AreaJson {
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

/// The message of an error, which may quote a text of the file of any length.
fn shortened(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        None => message,
        Some((end, _)) => {
            format!("{}… at line {} column {}", &message[..end], error.line(), error.column())
        }
    }
}

/// The id of an annotation; 0 if it has none.
fn id_of(id: &Scalar) -> Result<u64, String> {
    if *id == Scalar::Missing { Ok(0) } else { id.as_u64("id") }
}

/// The path of an image below its folder. Accepts a leading `./` and Windows separators, which some programs
/// write.
fn path_of(file_name: &str) -> Result<String, String> {
    let path = file_name.replace('\\', "/");
    let path = path.trim_start_matches("./");
    if path.starts_with('/') || path.as_bytes().get(1) == Some(&b':') {
        return Err(format!("path `{file_name}` is absolute; it must be relative to the image folder"));
    }
    if !files::is_relative_inside(path) {
        return Err(format!("path `{file_name}` is outside the data set folder"));
    }
    Ok(path.to_owned())
}

/// A parsed annotation, whose shape is stored elsewhere.
pub(super) struct ParsedRegion {
    image: u64,
    category: u64,
    id: u64,
    /// Its area: for masks twice the area in square units, for classes in units of 1/[`AREA_UNITS_PER_PIXEL`]
    /// pixel.
    pub area: u64,
    /// The offset of its shape.
    offset: u32,
    pub crowd: bool,
}

impl AnnotationsBuilder {
    fn new(target: AnnotationUse) -> Self {
        Self { target, images: Vec::new(), categories: Vec::new(), regions: Vec::new(), shapes: Vec::new() }
    }

    fn add_image(&mut self, image: ImageJson) -> Result<(), String> {
        let ImageJson { id, file_name, height, width } = image;
        let id = id.as_u64("id")?;
        let invalid = |problem: String| format!("image {id}: {problem}");
        let (height, width) =
            (height.as_u64("height").map_err(invalid)?, width.as_u64("width").map_err(invalid)?);
        let longest = MAX_SIDE_PIXELS as u64;
        if height.max(width) > longest || !(1..=MAX_IMAGE_PIXELS as u64).contains(&(height * width)) {
            return Err(format!("image {id} has an invalid size: {height}×{width}"));
        }
        let name = path_of(&file_name).map_err(invalid)?;
        self.images.push(Image { id, name: name.into(), size: [height as u32, width as u32] });
        Ok(())
    }

    fn add_category(&mut self, category: CategoryJson) -> Result<(), String> {
        let CategoryJson { id, name } = category;
        let id = id.as_u64("id").map_err(|problem| format!("category `{name}`: {problem}"))?;
        self.categories.push(Category { id, name });
        Ok(())
    }

    fn add_annotation(&mut self, annotation: AnnotationJson) -> Result<(), String> {
        let AnnotationJson { id, image_id, category_id, iscrowd, segmentation } = annotation;
        let id = id_of(&id)?;
        let invalid = |problem: String| format!("annotation {id}: {problem}");
        let crowd = iscrowd.as_bool("iscrowd").map_err(invalid)?;
        let image = image_id.as_u64("image_id").map_err(invalid)?;
        let category = category_id.as_u64("category_id").map_err(invalid)?;
        let offset = u32::try_from(self.shapes.len()).map_err(|_| invalid("outlines exceed 4 GiB".into()))?;
        let area = match segmentation {
            Some(Segmentation::Polygons(polygons)) if !polygons.is_empty() => {
                shapes::push_polygons(&mut self.shapes, &polygons)
            }
            Some(Segmentation::Runs { size, runs }) => {
                shapes::push_runs(&mut self.shapes, size, &runs).map_err(invalid)?
            }
            _ => {
                return Err(invalid(
                    "missing `segmentation`: a bounding box is not enough for a mask".to_owned(),
                ));
            }
        };
        self.regions.push(ParsedRegion { image, category, id, area, offset, crowd });
        Ok(())
    }

    fn add_area(&mut self, annotation: &AreaJson) -> Result<(), String> {
        let AreaJson { id, image_id, category_id, iscrowd, area } = annotation;
        let id = id_of(id)?;
        let invalid = |problem: String| format!("annotation {id}: {problem}");
        let crowd = iscrowd.as_bool("iscrowd").map_err(invalid)?;
        let image = image_id.as_u64("image_id").map_err(invalid)?;
        let category = category_id.as_u64("category_id").map_err(invalid)?;
        if self.target == AnnotationUse::Labels {
            self.regions.push(ParsedRegion { image, category, id, area: 0, offset: 0, crowd });
            return Ok(());
        }
        let area = area.as_f64("area").map_err(invalid)?;
        let area =
            area.ok_or_else(|| invalid("missing `area`, which selects the class of the image".to_owned()))?;
        if !(0.0..=MAX_AREA_PIXELS).contains(&area) {
            return Err(invalid(format!("`area` is {area}, expected 0 to {MAX_AREA_PIXELS}")));
        }
        let area = (area * AREA_UNITS_PER_PIXEL).round() as u64;
        self.regions.push(ParsedRegion { image, category, id, area, offset: 0, crowd });
        Ok(())
    }

    fn into_annotations(self) -> Result<Annotations, String> {
        let Self { target, mut images, mut categories, regions, shapes } = self;
        images.sort_unstable_by_key(|image| image.id);
        if let Some(twice) = images.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(format!("duplicate image id {}", twice[0].id));
        }
        categories.sort_unstable_by_key(|category| category.id);
        if let Some(twice) = categories.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(format!("duplicate category id {}", twice[0].id));
        }
        if target == AnnotationUse::Mask && categories.len() > MAX_CATEGORIES {
            return Err(format!("{} categories, maximum is {MAX_CATEGORIES}", categories.len()));
        }
        if images.is_empty() || categories.is_empty() {
            return Err("no images or no categories".to_owned());
        }
        if u32::try_from(images.len().max(categories.len()).max(regions.len())).is_err() {
            return Err(format!("more than {} images, categories or annotations", u32::MAX));
        }
        let targets = match target {
            AnnotationUse::Mask => Targets::Masks(sort_regions(&images, &categories, regions, shapes)?),
            AnnotationUse::Class => Targets::Classes(image_classes(&images, &categories, &regions)?),
            AnnotationUse::Labels => Targets::Labels(image_labels(&images, &categories, &regions)?),
        };
        let categories = categories.into_iter().map(|category| category.name).collect();
        Ok(Annotations { images, categories, targets })
    }
}

impl ParsedRegion {
    fn error(&self, problem: &str) -> String {
        format!("annotation {}: {problem}", self.id)
    }

    /// The indices of its image and its category, which are sorted by id.
    pub(super) fn locate(&self, images: &[Image], categories: &[Category]) -> Result<(usize, usize), String> {
        let Self { image, category, .. } = self;
        let at = images
            .binary_search_by_key(image, |image| image.id)
            .map_err(|_| self.error(&format!("unknown image id {image}")))?;
        let class = categories
            .binary_search_by_key(category, |category| category.id)
            .map_err(|_| self.error(&format!("unknown category id {category}")))?;
        Ok((at, class))
    }
}

/// Sorts the regions of all images in painting order.
fn sort_regions(
    images: &[Image],
    categories: &[Category],
    mut regions: Vec<ParsedRegion>,
    mut shapes: Vec<u8>,
) -> Result<MaskRegions, String> {
    // Crowds first, so that single objects are painted over them; then the largest first.
    regions.sort_unstable_by_key(|region| {
        (region.image, !region.crowd, std::cmp::Reverse(region.area), region.id, region.offset)
    });
    let mut starts = vec![0; images.len() + 1];
    let (mut classes, mut offsets) = (Vec::with_capacity(regions.len()), Vec::with_capacity(regions.len()));
    for region in &regions {
        let (at, class) = region.locate(images, categories)?;
        let size = images[at].size.map(u64::from);
        if let Some([height, width]) = shapes::rle_size(&shapes[region.offset as usize..])
            && [height, width] != size
        {
            return Err(region.error(&format!(
                "run lengths are for {height}×{width}, but image {} is {}×{}",
                region.image, size[0], size[1]
            )));
        }
        starts[at + 1] += 1;
        classes.push(if region.crowd { IGNORED_PIXEL } else { class as u8 + 1 });
        offsets.push(region.offset);
    }
    for image in 0..images.len() {
        starts[image + 1] += starts[image];
    }
    shapes.shrink_to_fit();
    Ok(MaskRegions { starts, classes, offsets, shapes })
}

/// The document is an object with three relevant lists.
impl<'de> DeserializeSeed<'de> for &mut AnnotationsBuilder {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut AnnotationsBuilder {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with images, annotations and categories")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "images" => map.next_value_seed(ElementVisitor::new(&key, |image| self.add_image(image)))?,
                "annotations" => match self.target {
                    AnnotationUse::Mask => {
                        map.next_value_seed(ElementVisitor::new(&key, |one| self.add_annotation(one)))?;
                    }
                    AnnotationUse::Class | AnnotationUse::Labels => {
                        map.next_value_seed(ElementVisitor::new(&key, |one| self.add_area(&one)))?;
                    }
                },
                "categories" => {
                    map.next_value_seed(ElementVisitor::new(&key, |one| self.add_category(one)))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Deserialises a list element by element, without keeping it.
struct ElementVisitor<'a, T, F> {
    /// The name of the list, for messages.
    list: &'a str,
    take: F,
    element: PhantomData<T>,
}

impl<'a, T, F: FnMut(T) -> Result<(), String>> ElementVisitor<'a, T, F> {
    fn new(list: &'a str, take: F) -> Self {
        Self { list, take, element: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'de>
    for ElementVisitor<'_, T, F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> Visitor<'de> for ElementVisitor<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        for number in 1u64.. {
            // Locates the error in the file: element of the list, line and column.
            let locate = |problem: &dyn fmt::Display| {
                A::Error::custom(format_args!("element {number} of `{}`: {problem}", self.list))
            };
            let Some(element) = list.next_element().map_err(|error| locate(&error))? else { break };
            (self.take)(element).map_err(|problem| locate(&problem))?;
        }
        Ok(())
    }
}

/// The outline of an object: polygons of x, y, x, y, …, or run lengths.
enum Segmentation {
    /// Corners in units of 1/256 pixel.
    Polygons(Vec<Vec<[i64; 2]>>),
    /// Height and width, and run lengths down the columns.
    Runs { size: [u64; 2], runs: Vec<u64> },
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Segmentation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of polygons, or an object with run lengths")
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
        return Err(format!("a polygon of {} numbers, expected two per corner", coordinates.len()));
    }
    if pairs.len() > MAX_POLYGON_CORNERS {
        return Err(format!("a polygon of {} corners, maximum is {MAX_POLYGON_CORNERS}", pairs.len()));
    }
    let corner = |[x, y]: &[f64; 2]| match (shapes::to_units(*x), shapes::to_units(*y)) {
        (Some(x), Some(y)) => Ok([x, y]),
        _ => Err(format!("polygon corner ({x}, {y}) is out of range")),
    };
    pairs.iter().map(corner).collect()
}

/// Run lengths, as a list or as COCO's text code.
struct Counts(Vec<u64>);

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of run lengths, or a run-length string")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counts, A::Error> {
                let mut runs = Vec::new();
                while let Some(run) = list.next_element()? {
                    runs.push(run);
                }
                Ok(Counts(runs))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Counts, E> {
                shapes::decode_rle_string(text)
                    .map(Counts)
                    .ok_or_else(|| E::custom("invalid run-length string"))
            }
        }

        json.deserialize_any(Either)
    }
}
