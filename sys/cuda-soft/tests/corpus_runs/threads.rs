//! ping_pong.cu, cooperative.cu, and the votes of reduction.cu.

use super::rig::Corpus;
use super::values;

#[test]
fn two_blocks_hand_a_value_to_and_fro() {
    for file in ["ping_pong.sm_75", "ping_pong.sm_90"] {
        let c = Corpus::load(file);
        let (flag, data) = (c.buffer(&[0u32]), c.buffer(&[1u32]));
        c.run("ping_pong", 2, 32, 0, &[flag.address, data.address, 200]);
        let want = (0..400).fold(1u32, |v, turn| v.wrapping_mul(3).wrapping_add(turn % 2 + 1));
        assert_eq!((c.read(flag), c.read(data)), (vec![400], vec![want]), "{file}");
    }
}

#[test]
fn a_block_waits_for_its_own_volatile_flag() {
    let c = Corpus::load("ping_pong.sm_75");
    let (flag, wide, out) = (c.buffer(&[0u32]), c.buffer(&[0u64]), c.buffer(&[0u32; 96]));
    c.run("volatile_flag", 1, 96, 0, &[flag.address, wide.address, out.address]);
    assert_eq!(c.read(out), [77; 96]);
}

#[test]
fn votes_shuffles_and_counts() {
    let c = Corpus::load("reduction.sm_75");
    let input: Vec<i32> = values(1, 64, |x| (x % 20) as i32 - 6);
    let out = c.buffer(&[0i32; 64]);
    c.run("vote_and_count", 1, 64, 0, &[c.buffer(&input).address, out.address]);
    let positive = |i: usize| input[i] > 0;
    let count = (0..64).filter(|i| positive(*i)).count() as i32;
    for (i, got) in c.read(out).into_iter().enumerate() {
        let warp = i / 32 * 32..i / 32 * 32 + 32;
        let (lane, base) = (i % 32, i / 32 * 32);
        let ballot = warp.clone().filter(|n| positive(*n)).count() as i32;
        let any = i32::from(warp.clone().any(|n| input[n] == 7));
        let all = i32::from(warp.clone().all(positive));
        let every = i32::from((0..64).all(positive));
        let some = i32::from(input.iter().any(|v| *v < 0));
        let rotated = i32::from(positive(base + (lane + 1) % 32));
        let swapped = (base + (lane ^ 5)) as i32;
        let below = if lane == 0 { i } else { i - 1 } as i32;
        let sum = ballot + 100 * any + 200 * all + 1000 * count + 10_000_000 * every + 20_000_000 * some;
        // The kernel also adds the active mask, which is -1 for a full, converged warp.
        assert_eq!(got, sum + rotated + swapped * 3 + below * 5 - 1, "{i}");
    }
}

#[test]
fn a_grid_synchronises_through_the_workspace_of_its_launch() {
    let c = Corpus::load("cooperative.sm_90");
    let (input, out) = (c.buffer(&[0u32; 256]), c.buffer(&[0u32; 256]));
    c.run_cooperative("grid_sync", 4, 64, &[input.address, out.address]);
    assert_eq!(c.read(out), (0..256).rev().collect::<Vec<u32>>());
}

#[test]
fn groups_and_warp_reductions() {
    let c = Corpus::load("cooperative.sm_90");
    let input: Vec<i32> = values(2, 64, |x| (x % 100) as i32);
    let out = c.buffer(&[0i32; 128]);
    c.run("groups", 1, 64, 0, &[c.buffer(&input).address, out.address]);
    let got = c.read(out);
    for tile in 0..8 {
        assert_eq!(got[tile], input[8 * tile..8 * tile + 8].iter().sum::<i32>());
    }
    // The value of each lane after the shuffles within tiles of eight.
    let mut sums = input.clone();
    for distance in [4, 2, 1] {
        let before = sums.clone();
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum += before[if i % 8 + distance < 8 { i + distance } else { i }];
        }
    }
    for i in 0..64 {
        let warp = i / 32 * 32;
        let same = (0..32).filter(|n| input[warp + n] & 3 == input[i] & 3).fold(0u32, |m, n| m | 1 << n);
        let sum: i32 = sums[warp..warp + 32].iter().sum();
        assert_eq!(got[64 + i], (same as i32).wrapping_add(sum), "{i}");
    }
}
