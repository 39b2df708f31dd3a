#!/bin/bash
# install_nsys.sh FOLDER [bookworm|trixie|experimental]
#
# Puts the real Nsight Systems (command line and importers; no GUI, no driver, no GPU needed) into FOLDER, out of Debian's
# non-free packages: 2022.4, 2023.4 or 2024.2. For tests and for `specanalyze export --to nsys`; never part of an install of
# this package, and not to be redistributed (NVIDIA's licence).
#
# No package is installed and no file outside FOLDER is written: own package lists, apt-get download, unpack what is used.
# Then: NSYS=FOLDER specanalyze export ...    or    . FOLDER/env.sh
set -euo pipefail

if [ $# -lt 1 ]; then
  echo "usage: $0 FOLDER [bookworm|trixie|experimental]" >&2
  exit 2
fi
folder=$(mkdir -p "$1" && cd "$1" && pwd)
suite=${2:-bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/sources"

# The archive that this machine already uses, with the non-free component.
archive=$(apt-get indextargets --format '$(REPO_URI)' | sort -u | grep -v -i security | head -n 1)
if [ -z "$archive" ]; then
  echo "$0: apt knows no package archive here" >&2
  exit 1
fi
source_of() {
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main non-free\nArchitectures: amd64\nSigned-By: %s\n' \
    "$archive" "$1" /usr/share/keyrings/debian-archive-keyring.gpg
}
source_of "$suite" > "$work/sources/nsys.sources"
release=() extra=()
if [ "$suite" = experimental ]; then
  source_of bookworm > "$work/sources/stable.sources"   # libssh-4 comes from there
  release=(-t experimental)
  extra=(libarrow500 libparquet500)
fi
options=(
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::Etc::SourceList=/dev/null
  -o "Dir::Etc::SourceParts=$work/sources" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -qq
)
apt-get "${options[@]}" update
cd "$work"
apt-get "${options[@]}" "${release[@]}" download nsight-systems nsight-systems-target "${extra[@]}"
apt-get "${options[@]}" download libssh-4 2> /dev/null || true

leave_out=(
  '*/doc/*' '*Qt6WebEngine*' '*/Plugins/*' '*/translations/*' '*/resources/*' '*/libexec/*' '*/CollectX/*' '*/GpuMetrics/*'
  'libcupti.so.1[01].*' 'libnvperf*' 'nsys-ui*' 'CrashReporter' '*/vulkan-layers/*'
)
for package in *.deb; do
  dpkg-deb --fsys-tarfile "$package" |
    tar -x -C "$folder" --wildcards --no-anchored "${leave_out[@]/#/--exclude=}" 'lib*'
done

cd "$folder"
host=usr/lib/nsight-systems/host-linux-x64
target=usr/lib/x86_64-linux-gnu/nsight-systems
# Debian keeps the importers in another place than nsys looks for them.
ln -sfn ../../nsight-systems/host-linux-x64 "$target/host-linux-x64"
# Since 2023 `nsys stats` looks for these two modules beside the importers.
mkdir -p "$host/python/lib"
cp -n usr/lib/python3/dist-packages/*stats.py "$host/python/lib/" 2> /dev/null || true
# 2024: the importers find these without LD_LIBRARY_PATH.
for library in libarrow libparquet; do
  if [ -e "usr/lib/x86_64-linux-gnu/$library.so.500" ]; then
    ln -sfn "../../x86_64-linux-gnu/$library.so.500" "$host/$library.so.500"
  fi
done
cat > env.sh <<EOF
export NSYS=$folder
export PATH=$folder/$target/target-linux-x64:\$PATH
EOF
"$target/target-linux-x64/nsys" --version
