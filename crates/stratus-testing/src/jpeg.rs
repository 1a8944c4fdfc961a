//! Synthetic JPEG files of any sampling and scan order. There is no encoder: coefficients are random (ITU-T
//! T.81).

/// The description of a file.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
    /// Vertical and horizontal sampling factors of each component: 1 to 4.
    pub factors: Vec<(u8, u8)>,
    /// The scans.
    pub scans: Scans,
    /// Minimum coded units between restart markers, 0 for none.
    pub restart: u16,
    /// The colour transform in the Adobe segment: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; `None` without the segment:
    /// grey, YCbCr or CMYK.
    pub adobe: Option<u8>,
    /// The seed of the coefficients.
    pub seed: u64,
}

/// The order of a file's scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// One interleaved scan.
    Together,
    /// One scan per component.
    Apart,
    /// Progressive: DC without the last bit, AC of each component, the last bit of DC.
    Progressive,
}

/// In any order: coefficients are random.
type Block = [i32; 64];

struct Component {
    factors: (usize, usize),
    /// Rows and columns of blocks, without padding of the last MCU.
    size: [usize; 2],
    stride: usize,
    blocks: Vec<Block>,
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> i32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound) as i32
    }
}

impl Sketch {
    /// The file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut draws = Draws(self.seed);
        let most =
            |along: fn(&(u8, u8)) -> u8| usize::from(self.factors.iter().map(along).max().unwrap_or(1));
        let (across, down) = (most(|factors| factors.0), most(|factors| factors.1));
        let units =
            [usize::from(self.height).div_ceil(8 * down), usize::from(self.width).div_ceil(8 * across)];
        let mut components: Vec<Component> = Vec::new();
        for &(h, v) in &self.factors {
            let (h, v) = (usize::from(h), usize::from(v));
            let blocks_of =
                |length: u16, own: usize, all: usize| (usize::from(length) * own).div_ceil(all).div_ceil(8);
            let stride = units[1] * h;
            let blocks = (0..units[0] * v * stride).map(|_| block(&mut draws)).collect();
            let size = [blocks_of(self.height, v, down), blocks_of(self.width, h, across)];
            components.push(Component { factors: (h, v), size, stride, blocks });
        }
        let mut file = vec![0xff, 0xd8];
        if let Some(transform) = self.adobe {
            segment(&mut file, 0xee, &[b"Adobe\0\x64\0\0\0\0".as_slice(), &[transform]].concat());
        }
        segment(&mut file, 0xdb, &[&[0], [3; 64].as_slice()].concat());
        let [high, low] = self.height.to_be_bytes();
        let [left, right] = self.width.to_be_bytes();
        let mut frame = vec![8, high, low, left, right, self.factors.len() as u8];
        for (number, (h, v)) in self.factors.iter().enumerate() {
            frame.extend([number as u8 + 1, (h << 4) | v, 0]);
        }
        segment(&mut file, if self.scans == Scans::Progressive { 0xc2 } else { 0xc0 }, &frame);
        // Huffman codes of constant length: 4 bits for DC sizes, 8 bits for AC runs and sizes.
        segment(
            &mut file,
            0xc4,
            &[&[0, 0, 0, 0, 12], [0; 12].as_slice(), &(0..12).collect::<Vec<u8>>()].concat(),
        );
        let mut lengths = [0; 16];
        lengths[7] = DETAILS.len() as u8;
        segment(&mut file, 0xc4, &[&[0x10], lengths.as_slice(), &DETAILS].concat());
        if self.restart > 0 {
            segment(&mut file, 0xdd, &self.restart.to_be_bytes());
        }
        let all: Vec<usize> = (0..components.len()).collect();
        let scan = |file: &mut Vec<u8>, which: &[usize], part| {
            self.scan(file, &components, which, units, part);
        };
        match self.scans {
            Scans::Together => scan(&mut file, &all, Part::All),
            Scans::Apart => all.iter().for_each(|&one| scan(&mut file, &[one], Part::All)),
            Scans::Progressive => {
                scan(&mut file, &all, Part::Means);
                all.iter().for_each(|&one| scan(&mut file, &[one], Part::Details));
                scan(&mut file, &all, Part::LastBit);
            }
        }
        file.extend([0xff, 0xd9]);
        file
    }

    fn scan(
        &self,
        file: &mut Vec<u8>,
        components: &[Component],
        which: &[usize],
        units: [usize; 2],
        part: Part,
    ) {
        let mut header = vec![which.len() as u8];
        which.iter().for_each(|&one| header.extend([one as u8 + 1, 0]));
        header.extend(match part {
            Part::All => [0, 63, 0],
            Part::Means => [0, 0, 1],
            Part::Details => [1, 63, 0],
            Part::LastBit => [0, 0, 0x10],
        });
        segment(file, 0xda, &header);
        // The blocks of each MCU; a scan of one component has one per MCU.
        let each: Vec<Vec<(usize, usize)>> = match which {
            &[one] => {
                let Component { size: [rows, columns], stride, .. } = components[one];
                let places = (0..rows).flat_map(|y| (0..columns).map(move |x| y * stride + x));
                places.map(|at| vec![(one, at)]).collect()
            }
            _ => (0..units[0] * units[1])
                .map(|unit| {
                    let (y, x) = (unit / units[1], unit % units[1]);
                    let blocks = which.iter().flat_map(|&one| {
                        let Component { factors: (h, v), stride, .. } = components[one];
                        let places = (0..v).flat_map(move |row| (0..h).map(move |column| (row, column)));
                        places.map(move |(row, column)| (one, (y * v + row) * stride + x * h + column))
                    });
                    blocks.collect()
                })
                .collect(),
        };
        let mut bits = Bits::default();
        let mut before = vec![0; components.len()];
        for (number, unit) in each.iter().enumerate() {
            if self.restart > 0 && number > 0 && number % usize::from(self.restart) == 0 {
                bits.flush(file);
                file.extend([0xff, 0xd0 + ((number / usize::from(self.restart) - 1) % 8) as u8]);
                before.fill(0);
            }
            for &(one, at) in unit {
                let block = &components[one].blocks[at];
                match part {
                    Part::LastBit => bits.put(file, block[0] as u32 & 1, 1),
                    Part::Details => details(&mut bits, file, block),
                    Part::All | Part::Means => {
                        let mean = if part == Part::Means { block[0] >> 1 } else { block[0] };
                        let size = size_of_number(mean - before[one]);
                        bits.put(file, size, 4);
                        bits.number(file, mean - before[one], size);
                        before[one] = mean;
                        if part == Part::All {
                            details(&mut bits, file, block);
                        }
                    }
                }
            }
        }
        bits.flush(file);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Means,
    Details,
    LastBit,
}

/// A random DC and a few AC coefficients.
fn block(draws: &mut Draws) -> Block {
    let mut block = [0; 64];
    block[0] = draws.below(500) - 250;
    for _ in 0..draws.below(6) {
        block[1 + draws.below(63) as usize] = draws.below(121) - 60;
    }
    block
}

/// Run of zeros and size of what follows, but for two: the end of a block, and a run of 16.
const DETAILS: [u8; 114] = {
    let mut symbols = [0; 114];
    let mut at = 1;
    while at < 113 {
        symbols[at] = (((at - 1) / 7) << 4) as u8 | ((at - 1) % 7 + 1) as u8;
        at += 1;
    }
    symbols[113] = 0xf0;
    symbols
};

fn details(bits: &mut Bits, file: &mut Vec<u8>, block: &Block) {
    let mut run = 0;
    for &value in &block[1..] {
        if value == 0 {
            run += 1;
            continue;
        }
        while run > 15 {
            bits.put(file, 113, 8);
            run -= 16;
        }
        let size = size_of_number(value);
        bits.put(file, 1 + run * 7 + size - 1, 8);
        bits.number(file, value, size);
        run = 0;
    }
    if run > 0 {
        bits.put(file, 0, 8);
    }
}

/// The bits of a magnitude.
fn size_of_number(value: i32) -> u32 {
    32 - value.unsigned_abs().leading_zeros()
}

fn segment(file: &mut Vec<u8>, marker: u8, content: &[u8]) {
    file.extend([0xff, marker]);
    file.extend((content.len() as u16 + 2).to_be_bytes());
    file.extend(content);
}

/// Bits of an incomplete byte.
#[derive(Default)]
struct Bits {
    held: u32,
    count: u32,
}

impl Bits {
    fn put(&mut self, file: &mut Vec<u8>, value: u32, count: u32) {
        for at in (0..count).rev() {
            self.held = (self.held << 1) | ((value >> at) & 1);
            self.count += 1;
            if self.count == 8 {
                file.push(self.held as u8);
                // A byte 0xff within the data is followed by 0.
                file.extend((self.held == 0xff).then_some(0));
                (self.held, self.count) = (0, 0);
            }
        }
    }

    fn number(&mut self, file: &mut Vec<u8>, value: i32, size: u32) {
        let stored = if value < 0 { value - 1 } else { value };
        self.put(file, stored as u32, size);
    }

    fn flush(&mut self, file: &mut Vec<u8>) {
        while self.count > 0 {
            self.put(file, 1, 1);
        }
    }
}
