//! The places of nodes and edges of a drawing: nodes in ranks from top to bottom (Sugiyama, Tagawa, Toda,
//! 1981).
//!
//! The rank of a node is the longest path to it. An edge over several ranks runs through a lane beside the
//! nodes of the ranks between; all long edges of a node share its lane, which keeps networks that concatenate
//! legible. The order within ranks follows barycentres; positions are the weighted least squares that keep
//! the order and the distances.

/// The height of a node.
pub(super) const NODE_HEIGHT: f64 = 42.0;
/// The distance between ranks.
const RANK_GAP: f64 = 40.0;
/// The distance between neighbours of a rank.
const GAP: f64 = 18.0;
/// The width of a lane.
const LANE_WIDTH: f64 = 8.0;
/// The distance to the edge of the drawing.
pub(super) const MARGIN: f64 = 16.0;
/// Maximum distance between two edges that enter a node.
const MAX_PORT_GAP: f64 = 18.0;
/// Number of sweeps for the order of nodes, and for their positions.
const SWEEPS: usize = 8;

/// The places of a drawing.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Width of the drawing.
    pub(super) width: f64,
    /// Height of the drawing.
    pub(super) height: f64,
    /// The centre of the top of each node.
    pub(super) nodes: Vec<[f64; 2]>,
    /// The route of each edge.
    pub(super) routes: Vec<Route>,
}

/// The route of an edge.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// Its corners, from the bottom of its first node to the top of its second.
    pub(super) points: Vec<[f64; 2]>,
    /// The number of ranks that it crosses; 0 if it runs backwards.
    pub(super) ranks: usize,
}

/// A node, or the part of a lane in a rank.
struct Item {
    width: f64,
    /// How much it resists being moved.
    weight: f64,
    /// Items of the rank above, and how much they attract it.
    above: Vec<(usize, f64)>,
    /// Items of the rank below.
    below: Vec<(usize, f64)>,
    x: f64,
}

struct Ranks {
    items: Vec<Item>,
    /// The items of each rank, from left to right.
    order: Vec<Vec<usize>>,
    /// The rank of each node.
    rank_of: Vec<usize>,
    /// The first item of the lane of each node, in the rank below it.
    lanes: Vec<Option<usize>>,
}

/// Places nodes of some widths. Edges from a node to an earlier one, or to itself, run backwards.
pub(super) fn place(widths: &[f64], edges: &[(usize, usize)], top: f64) -> Layout {
    if widths.is_empty() {
        return Layout::default();
    }
    let mut ranks = Ranks::new(widths, edges);
    ranks.sort();
    ranks.align();
    let half = |item: &Item| item.width / 2.0;
    let left = ranks.items.iter().map(|item| item.x - half(item)).fold(f64::INFINITY, f64::min);
    ranks.items.iter_mut().for_each(|item| item.x += MARGIN - left);
    let right = ranks.items.iter().map(|item| item.x + half(item)).fold(0.0, f64::max);
    let y = |rank: usize| top + rank as f64 * (NODE_HEIGHT + RANK_GAP);
    let nodes: Vec<[f64; 2]> =
        (0..widths.len()).map(|node| [ranks.items[node].x, y(ranks.rank_of[node])]).collect();
    let mut width = right + MARGIN;
    let mut routes: Vec<Route> = edges
        .iter()
        .map(|&(from, to)| {
            let [start, end] = [from, to].map(|node| ranks.rank_of[node]);
            let mut points = vec![[nodes[from][0], nodes[from][1] + NODE_HEIGHT]];
            if from >= to {
                // Around everything, on the right.
                width += GAP;
                let x = width - MARGIN;
                let [below, above] = [y(start) + NODE_HEIGHT + RANK_GAP / 2.0, y(end) - RANK_GAP / 2.0];
                points.extend([[nodes[from][0], below], [x, below], [x, above], [nodes[to][0], above]]);
            } else if let Some(lane) = ranks.lanes[from].filter(|_| end > start + 1) {
                for (item, rank) in (lane..).zip(start + 1..end) {
                    let x = ranks.items[item].x;
                    points.extend([[x, y(rank)], [x, y(rank) + NODE_HEIGHT]]);
                }
            }
            points.push([nodes[to][0], nodes[to][1]]);
            Route { points, ranks: if from < to { end - start } else { 0 } }
        })
        .collect();
    spread(&mut routes, edges, widths);
    let height = y(ranks.order.len()) - RANK_GAP + MARGIN;
    Layout { width, height, nodes, routes }
}

/// Separates the ends of edges that enter the same node.
fn spread(routes: &mut [Route], edges: &[(usize, usize)], widths: &[f64]) {
    let mut entering: Vec<Vec<usize>> = vec![Vec::new(); widths.len()];
    for (edge, (_, to)) in edges.iter().enumerate() {
        entering[*to].push(edge);
    }
    for (node, mut edges) in entering.into_iter().enumerate() {
        let before = |edge: &usize| match &routes[*edge].points[..] {
            [.., before, _] => before[0],
            _ => 0.0,
        };
        edges.sort_by(|a, b| before(a).total_cmp(&before(b)).then(a.cmp(b)));
        let gap = (widths[node] / (edges.len() + 1) as f64).min(MAX_PORT_GAP);
        let middle = edges.len().saturating_sub(1) as f64 / 2.0;
        for (position, edge) in edges.into_iter().enumerate() {
            let shift = (position as f64 - middle) * gap;
            let route = &mut routes[edge];
            let backwards = route.ranks == 0;
            let mut ends = route.points.iter_mut().rev();
            if let Some(end) = ends.next() {
                end[0] += shift;
            }
            // The last corner of a backward edge is above its end.
            if let Some(corner) = ends.next().filter(|_| backwards) {
                corner[0] += shift;
            }
        }
    }
}

impl Ranks {
    fn new(widths: &[f64], edges: &[(usize, usize)]) -> Self {
        let count = widths.len();
        let mut forward: Vec<(usize, usize)> = edges.iter().copied().filter(|(from, to)| from < to).collect();
        forward.sort_unstable();
        forward.dedup();
        let mut rank_of = vec![0_usize; count];
        // Sorted by their first nodes, whose ranks are therefore final.
        for &(from, to) in &forward {
            rank_of[to] = rank_of[to].max(rank_of[from] + 1);
        }
        let depth = rank_of.iter().max().map_or(0, |rank| rank + 1);
        let item =
            |width: f64, weight: f64| Item { width, weight, above: Vec::new(), below: Vec::new(), x: 0.0 };
        let mut ranks = Self {
            items: widths.iter().map(|width| item(*width, 8.0)).collect(),
            order: vec![Vec::new(); depth],
            rank_of,
            lanes: vec![None; count],
        };
        for node in 0..count {
            let rank = ranks.rank_of[node];
            ranks.order[rank].push(node);
        }
        for from in 0..count {
            let targets = forward.iter().filter(|(start, _)| *start == from).map(|(_, to)| *to);
            let last = targets.map(|to| ranks.rank_of[to]).max().unwrap_or(0);
            let first = ranks.rank_of[from] + 1;
            let mut previous = from;
            for rank in first..last {
                let lane = ranks.items.len();
                ranks.items.push(item(LANE_WIDTH, 0.1));
                ranks.order[rank].push(lane);
                ranks.link(previous, lane, if previous == from { 0.2 } else { 4.0 });
                ranks.lanes[from].get_or_insert(lane);
                previous = lane;
            }
        }
        for (from, to) in forward {
            let ranks_between = ranks.rank_of[to] - ranks.rank_of[from] - 1;
            match ranks.lanes[from].filter(|_| ranks_between > 0) {
                Some(lane) => ranks.link(lane + ranks_between - 1, to, 0.2),
                None => ranks.link(from, to, 8.0),
            }
        }
        ranks
    }

    fn link(&mut self, above: usize, below: usize, weight: f64) {
        self.items[above].below.push((below, weight));
        self.items[below].above.push((above, weight));
    }

    /// Orders the items of each rank by the barycentres of their neighbours; keeps the order with the fewest
    /// crossings.
    fn sort(&mut self) {
        let mut best = (self.crossings(), self.order.clone());
        for sweep in 0..SWEEPS {
            let downwards = sweep % 2 == 0;
            let depth = self.order.len();
            for step in 0..depth {
                let rank = if downwards { step } else { depth - 1 - step };
                let places = self.places();
                let centre = |item: usize| {
                    let item_links = &self.items[item];
                    let links = if downwards { &item_links.above } else { &item_links.below };
                    let sum: f64 = links.iter().map(|(other, _)| places[*other]).sum();
                    if links.is_empty() { places[item] } else { sum / links.len() as f64 }
                };
                let mut row: Vec<(f64, usize)> =
                    self.order[rank].iter().map(|item| (centre(*item), *item)).collect();
                row.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.order[rank] = row.into_iter().map(|(_, item)| item).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.order.clone());
            }
        }
        self.order = best.1;
    }

    /// The position of each item in its rank, from 0 to 1.
    fn places(&self) -> Vec<f64> {
        let mut places = vec![0.0; self.items.len()];
        for row in &self.order {
            for (position, item) in row.iter().enumerate() {
                places[*item] = (position as f64 + 0.5) / row.len() as f64;
            }
        }
        places
    }

    /// The number of crossings of edges between neighbouring ranks.
    fn crossings(&self) -> usize {
        let places = self.places();
        let mut count = 0;
        for row in &self.order {
            let mut seen: Vec<f64> = Vec::new();
            for item in row {
                let ends: Vec<f64> =
                    self.items[*item].below.iter().map(|(other, _)| places[*other]).collect();
                count +=
                    ends.iter().map(|end| seen.iter().filter(|other| *other > end).count()).sum::<usize>();
                seen.extend(ends);
            }
        }
        count
    }

    /// Chooses the positions within the ranks.
    fn align(&mut self) {
        for row in &self.order {
            let mut x = 0.0;
            for item in row {
                self.items[*item].x = x + self.items[*item].width / 2.0;
                x += self.items[*item].width + GAP;
            }
            row.iter().for_each(|item| self.items[*item].x -= x / 2.0);
        }
        for sweep in 0..2 * SWEEPS {
            let depth = self.order.len();
            for step in 0..depth {
                let rank = if sweep % 2 == 0 { step } else { depth - 1 - step };
                self.align_rank(rank, sweep % 2 == 0);
            }
        }
    }

    /// Moves the items of a rank towards their neighbours above or below: the positions with the least sum of
    /// weighted squares that keep order and distances (pool adjacent violators).
    fn align_rank(&mut self, rank: usize, downwards: bool) {
        // Each pool: the sums of weighted offsets and weights, and its number of items.
        let mut pools: Vec<(f64, f64, usize)> = Vec::new();
        let mut starts: Vec<f64> = Vec::new();
        let mut start = 0.0;
        let mut last_width: Option<f64> = None;
        for &item in &self.order[rank] {
            let Item { width, weight, above, below, x, .. } = &self.items[item];
            let links = if downwards { above } else { below };
            let attraction: f64 = links.iter().map(|(_, weight)| weight).sum();
            let wanted = match links.is_empty() {
                true => *x,
                false => {
                    let sum: f64 = links.iter().map(|(other, weight)| self.items[*other].x * weight).sum();
                    sum / attraction
                }
            };
            start += last_width.map_or(0.0, |last| (last + width) / 2.0 + GAP);
            last_width = Some(*width);
            starts.push(start);
            pools.push(((wanted - start) * weight, *weight, 1));
            while let [.., a, b] = &pools[..]
                && a.0 / a.1 >= b.0 / b.1
            {
                let pooled = (a.0 + b.0, a.1 + b.1, a.2 + b.2);
                pools.truncate(pools.len() - 2);
                pools.push(pooled);
            }
        }
        let offsets = pools.into_iter().flat_map(|(sum, weight, count)| vec![sum / weight; count]);
        for ((&item, start), offset) in self.order[rank].iter().zip(starts).zip(offsets) {
            self.items[item].x = start + offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network of random edges, by a small generator.
    fn random(seed: u64) -> (Vec<f64>, Vec<(usize, usize)>) {
        let mut state = seed;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let count = 1 + below(40);
        let widths = (0..count).map(|_| 60.0 + below(150) as f64).collect();
        let mut edges: Vec<(usize, usize)> = (1..count).map(|to| (below(to), to)).collect();
        edges.extend((0..below(30)).map(|_| (below(count), below(count))));
        (widths, edges)
    }

    /// Nodes do not overlap, each edge begins and ends at its nodes, and no edge crosses a node.
    #[test]
    fn nodes_and_edges_do_not_overlap() {
        for seed in 0..200 {
            let (widths, edges) = random(seed);
            let layout = place(&widths, &edges, 10.0);
            assert_eq!((layout.nodes.len(), layout.routes.len()), (widths.len(), edges.len()));
            let boxes: Vec<[f64; 4]> = layout
                .nodes
                .iter()
                .zip(&widths)
                .map(|([x, y], width)| [x - width / 2.0, *y, x + width / 2.0, y + NODE_HEIGHT])
                .collect();
            for (a, [left, top, right, bottom]) in boxes.iter().enumerate() {
                assert!(*left >= 0.0 && *right <= layout.width && *bottom <= layout.height, "seed {seed}");
                for [other_left, other_top, other_right, other_bottom] in &boxes[..a] {
                    let apart = right + 1.0 < *other_left
                        || other_right + 1.0 < *left
                        || bottom < other_top
                        || other_bottom < top;
                    assert!(apart, "seed {seed}: nodes overlap");
                }
            }
            for (route, &(from, to)) in layout.routes.iter().zip(&edges) {
                let points = &route.points;
                let (first, last) = (points[0], points[points.len() - 1]);
                assert_eq!(first, [layout.nodes[from][0], layout.nodes[from][1] + NODE_HEIGHT]);
                assert!(last[1] == boxes[to][1] && boxes[to][0] < last[0] && last[0] < boxes[to][2]);
                assert_eq!(route.ranks == 0, from >= to);
                // Between the ranks there are no nodes; a vertical line in a rank is beside them.
                for pair in points.windows(2).filter(|pair| pair[0][0] == pair[1][0]) {
                    let (low, high) = (pair[0][1].min(pair[1][1]), pair[0][1].max(pair[1][1]));
                    for [left, top, right, bottom] in &boxes {
                        let crosses =
                            *left < pair[0][0] && pair[0][0] < *right && low < *top && high > *bottom;
                        assert!(!crosses, "seed {seed}: an edge crosses a node");
                    }
                }
            }
        }
    }

    #[test]
    fn a_chain_is_straight_and_a_residual_edge_is_beside_it() {
        let layout = place(&[100.0; 4], &[(0, 1), (1, 2), (2, 3), (0, 3)], 0.0);
        let x: Vec<f64> = layout.nodes.iter().map(|node| node[0].round()).collect();
        assert!(x.iter().all(|other| (other - x[0]).abs() <= 12.0), "{x:?}");
        let residual = &layout.routes[3];
        assert_eq!(residual.ranks, 3);
        assert!((residual.points[1][0] - x[1]).abs() > 50.0);
        assert!(place(&[], &[], 0.0).nodes.is_empty());
    }
}
