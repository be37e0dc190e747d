#!/usr/bin/env bash
# Checks that dependencies run downwards: between packages, and between the layers of core. Proves first, on planted
# violations, that it can fail. Needs cargo and perl only.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages. A normal dependency that is not on its package's line is a violation. Dev-dependencies have their own rules.
library_crates='hmac libc libloading log memmap2 sha2'
may_use() {
    case $1 in
        aqueduct-cuda-driver-sys | aqueduct-rdma-core-sys) echo "libc libloading" ;;
        aqueduct-cuda-soft) echo "aqueduct-cuda-driver-sys *" ;;
        aqueduct-ptx) echo "" ;;
        aqueduct) echo "aqueduct-cuda-driver-sys aqueduct-rdma-core-sys aqueduct-ptx $library_crates" ;;
        aqueduct-tools) echo "aqueduct aqueduct-ptx aqueduct-cuda-soft *" ;;
        aqueduct-tests | aqueduct-benches)
            echo "aqueduct aqueduct-ptx aqueduct-cuda-soft aqueduct-cuda-driver-sys aqueduct-rdma-core-sys *" ;;
        aqueduct-examples) echo "aqueduct aqueduct-cuda-soft" ;;
        aqueduct-fuzz) echo "aqueduct aqueduct-ptx aqueduct-cuda-soft *" ;;
        *) echo "unknown" ;;
    esac
}
may_use_for_tests() {
    case $1 in
        aqueduct-cuda-driver-sys | aqueduct-rdma-core-sys) echo "*" ;;
        aqueduct-cuda-soft) echo "aqueduct-cuda-driver-sys *" ;;
        aqueduct-ptx | aqueduct) echo "aqueduct-cuda-soft aqueduct-cuda-driver-sys aqueduct-rdma-core-sys aqueduct-ptx *" ;;
        aqueduct-tools) echo "$(may_use "$1") aqueduct-rdma-core-sys aqueduct-tests" ;;
        aqueduct-examples) echo "$(may_use "$1") aqueduct-tests" ;;
        *) may_use "$1" ;;
    esac
}

# `judge PACKAGE ALLOWED < dependencies`: prints each dependency that is not allowed. `*` allows every crate of others.
judge() {
    local package=$1 allowed=" $2 " dependency
    while read -r dependency; do
        [ -n "$dependency" ] && [ "$dependency" != "$package" ] || continue
        case $allowed in *" $dependency "*) continue ;; esac
        case $dependency in
            aqueduct | aqueduct-*) ;;
            *) case $allowed in *" * "*) continue ;; esac ;;
        esac
        echo "layers: package $package must not use $dependency"
    done
}

dependencies() { # PACKAGE EDGES
    cargo tree --quiet --offline -p "$1" -e "$2" --depth 1 --prefix none 2>/dev/null || cargo tree --quiet -p "$1" -e "$2" --depth 1 --prefix none
}
direct() { dependencies "$1" "$2" | awk 'NR > 1 { print $1 }' | sort -u; }

check_packages() {
    local package packages
    packages=$(cargo metadata --no-deps --format-version 1 | perl -ne 'print "$1\n" while /"name":"(aqueduct[a-z-]*)","version"/g')
    [ "$(echo "$packages" | wc -l)" -ge 7 ] || echo "layers: cargo metadata listed only: $packages"
    for package in $packages; do
        direct "$package" normal,build | judge "$package" "$(may_use "$package")"
        direct "$package" dev | judge "$package" "$(may_use_for_tests "$package")"
    done
}

# Modules of core. A file may name its own module and modules of lower layers. `crate::Error` and other re-exports of
# layer 0 are allowed everywhere.
check_modules() { # SRC
    perl -e '
        use strict; use warnings;
        my %layer = (
            (map { $_ => 0 } qw(error deadline descriptors digest abort env failure outcome fault fork logging own_process processors service_thread wire volatile sync)),
            (map { $_ => 1 } qw(net shm gpu rdma)),
            (map { $_ => 2 } qw(bootstrap)),
            (map { $_ => 3 } qw(group message)),
            (map { $_ => 4 } qw(device_messages ledger)),
            (map { $_ => 5 } qw(setup)),
            (map { $_ => 6 } qw(memory)),
            (map { $_ => 7 } qw(transport)),
            (map { $_ => 8 } qw(comm)),
            (map { $_ => 9 } qw(proxy)),
            (map { $_ => 10 } qw(channel)),
            (map { $_ => 11 } qw(plan)),
            (map { $_ => 12 } qw(collective device)),
            (map { $_ => 13 } qw(fuzzing)), # opens decoders of all layers to the fuzz targets
        );
        my $src = shift;
        open my $list, "-|", "find", $src, "-name", "*.rs" or die; my @files = sort <$list>; chomp @files;
        die "layers: no sources under $src\n" unless @files;
        for my $file (@files) {
            (my $relative = $file) =~ s{^\Q$src\E/}{};
            my ($module) = $relative =~ m{^(\w+)};
            next if $module eq "lib" || $relative =~ m{(^|/)tests(\.rs$|/)};
            unless (exists $layer{$module}) { print "layers: core module $module has no layer; add it to ci/layers.sh\n"; next }
            open my $in, "<", $file or die; local $/; my $text = <$in>;
            $text =~ s{//[^\n]*}{}g;
            $text =~ s{#\[cfg\(test\)\]\s*mod \w+ \{.*}{}s;
            my @named = $text =~ /\bcrate::(\w+)/g;
            for my $group ($text =~ /\bcrate::\{((?:[^{}]|\{[^{}]*\})*)\}/g) {
                $group =~ s/\{[^{}]*\}//g; push @named, map { /^\s*(\w+)/ ? $1 : () } split /,/, $group;
            }
            my %seen;
            for my $other (grep { exists $layer{$_} && !$seen{$_}++ } @named) {
                next if $other eq $module || $layer{$other} < $layer{$module};
                next if $layer{$other} == 0 && $layer{$module} == 0;
                print "layers: core/src/$relative (layer $layer{$module}) must not use crate::$other (layer $layer{$other})\n";
            }
        }' "$1"
}

# Proof that the check can fail: a forbidden package dependency and a forbidden module dependency, planted.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
[ -n "$(echo aqueduct | judge aqueduct-ptx "$(may_use aqueduct-ptx)")" ] || { echo "layers: does not see a planted package dependency"; exit 2; }
[ -n "$(echo serde | judge aqueduct "$(may_use aqueduct)")" ] || { echo "layers: does not see a planted crate"; exit 2; }
mkdir -p "$planted/gpu"
echo 'use crate::{error::Error, comm::Communicator};' >"$planted/gpu/mod.rs"
echo 'fn f() { crate::channel::g() }' >"$planted/wire.rs"
[ "$(check_modules "$planted" | wc -l)" = 2 ] || { echo "layers: does not see a planted module dependency"; exit 2; }

violations=$(check_packages; check_modules core/src)
if [ -n "$violations" ]; then
    echo "$violations"
    exit 1
fi
echo "layers: ok"
